"""Top-k, top-p and min-p as one threshold a row, found without sorting the vocabulary.

Each filter keeps the tokens whose probability is at or above some value, so three filters are one comparison with the
highest of their thresholds. Tokens of equal probability are kept or dropped together: no order among them matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.protocol import Sampling

#: How many of the best tokens are looked at first; most nuclei end within them.
_FIRST_CANDIDATES = 64
#: A top_k above this is found by selection on its own row, so that one such row doesn't slow the others.
_MAX_BATCHED_TOP_K = 512
_BITS_OF_ONE = 0x3F800000
"""The float32 1.0 as an integer. Floats in [0, 1] are ordered as their bit patterns are."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a batch of rows; index i belongs to row i."""

    top_k: tuple[int, ...]
    """0 is off."""
    top_p: tuple[float, ...]
    min_p: tuple[float, ...]

    @classmethod
    def of(cls, settings: Sequence[Sampling], vocab_size: int) -> Filters:
        """Filters of these requests; values that filter nothing become "off"."""
        return cls(
            top_k=tuple(setting.top_k if 0 < setting.top_k < vocab_size else 0 for setting in settings),
            top_p=tuple(setting.top_p for setting in settings),
            min_p=tuple(min(setting.min_p, 1.0) for setting in settings),
        )


def apply_filters(mass: torch.Tensor, filters: Filters) -> None:
    """Set what is filtered out to 0, in place.

    `mass` is float32 [R, V]: unnormalised probabilities, exactly 1 for the best token of each row. min-p is taken first,
    then top-k, then top-p over what the two left, renormalised.
    """
    candidates, places = _candidates(mass, filters)
    if any(filters.top_k) or any(p > 0.0 for p in filters.min_p):
        floor = torch.tensor(filters.min_p, dtype=torch.float32, device=mass.device)
        if any(filters.top_k):
            floor = torch.maximum(floor, _top_k_floor(mass, candidates, places, filters.top_k))
        _drop_below(mass, floor)
        candidates = torch.where(candidates >= floor[list(places)][:, None], candidates, 0.0)
    if any(p < 1.0 for p in filters.top_p):
        _drop_below(mass, _top_p_floor(mass, candidates, places, filters.top_p))


def _drop_below(mass: torch.Tensor, floor: torch.Tensor) -> None:
    """Set mass below `floor` [R] to 0 in place."""
    if mass.device.type != "cpu":
        mass.masked_fill_(mass < floor[:, None], 0.0)
        return
    # threshold_ keeps what is greater, and is the one vectorised way on the CPU: a mask takes twenty times as long.
    below = torch.nextafter(floor, torch.full_like(floor, -1.0)).tolist()
    for row, bound in zip(mass, below, strict=True):
        torch.threshold_(row, bound, 0.0)


def _candidates(mass: torch.Tensor, filters: Filters) -> tuple[torch.Tensor, dict[int, int]]:
    """Highest masses [N, K], descending, of the rows that need them, and the place in it of each such row."""
    width = 0
    rows: list[int] = []
    for row, (top_k, top_p) in enumerate(zip(filters.top_k, filters.top_p, strict=True)):
        count = top_k if top_k <= _MAX_BATCHED_TOP_K else 0
        if top_p < 1.0:
            count = max(count, _FIRST_CANDIDATES)
        if count:
            rows.append(row)
            width = max(width, count)
    if not rows:
        return mass[:0, :0], {}
    source = mass if len(rows) == len(mass) else mass[rows]
    return source.topk(min(width, mass.shape[1]), dim=1).values, {row: place for place, row in enumerate(rows)}


def _top_k_floor(mass: torch.Tensor, candidates: torch.Tensor, places: dict[int, int], top_k: tuple[int, ...]) -> torch.Tensor:
    """float32 [R]: the k-th highest mass of each row, 0 where top-k is off."""
    floor = torch.zeros(len(top_k), dtype=torch.float32, device=mass.device)
    batched = [row for row, k in enumerate(top_k) if 0 < k <= _MAX_BATCHED_TOP_K]
    if batched:
        floor[batched] = candidates[[places[row] for row in batched], [top_k[row] - 1 for row in batched]]
    for row, k in enumerate(top_k):
        if k > _MAX_BATCHED_TOP_K:
            floor[row] = mass[row].kthvalue(mass.shape[1] - k + 1).values
    return floor


def _top_p_floor(mass: torch.Tensor, candidates: torch.Tensor, places: dict[int, int], top_p: tuple[float, ...]) -> torch.Tensor:
    """float32 [R]: the highest floor whose kept tokens hold at least `top_p` of the row's mass; 0 where top-p is off."""
    floor = torch.zeros(len(top_p), dtype=torch.float32, device=mass.device)
    rows = [row for row, p in enumerate(top_p) if p < 1.0]
    share = torch.tensor([top_p[row] for row in rows], dtype=torch.float64, device=mass.device)
    target = share * mass.sum(dim=1, dtype=torch.float64)[rows]
    values = candidates[[places[row] for row in rows]]
    enough = values.cumsum(dim=1, dtype=torch.float64) >= target[:, None]
    floor[rows] = values.gather(1, enough.int().argmax(dim=1, keepdim=True))[:, 0]
    # A candidate of mass 0 means that the candidates are all there is: then rounding alone kept them below the target.
    for row, found, last, aim in zip(rows, enough.any(dim=1).tolist(), values[:, -1].tolist(), target.tolist(), strict=True):
        if not found:
            floor[row] = _select_nucleus(mass[row], aim) if last > 0.0 else 0.0
    return floor


def _select_nucleus(mass: torch.Tensor, target: float) -> float:
    """The same floor for one row [V] whose nucleus is wide: weighted selection by radix on the bits of the masses.

    The first pass adds up the mass by the upper 16 bits, best first, and finds where the sum crosses the target; the
    second does the same by the lower 16 bits of what lies there. Nothing is sorted.
    """
    order = _BITS_OF_ONE - mass.view(torch.int32)
    upper = order >> 16
    crossing, above = _crossing(upper, mass, target)
    inside = upper == crossing
    lower, _ = _crossing(order[inside] & 0xFFFF, mass[inside], target - above)
    bits = torch.tensor(_BITS_OF_ONE - ((crossing << 16) | lower), dtype=torch.int32)
    return float(bits.view(torch.float32))


def _crossing(bins: torch.Tensor, mass: torch.Tensor, target: float) -> tuple[int, float]:
    """First bin with which the running sum of mass reaches `target` (the last one where rounding keeps it below), and the sum before it."""
    sums = torch.bincount(bins, weights=mass.double())
    running = sums.cumsum(0)
    place = int(torch.searchsorted(running, torch.tensor(target, dtype=torch.float64, device=running.device)))
    place = min(place, len(running) - 1)
    return place, float(running[place] - sums[place])
