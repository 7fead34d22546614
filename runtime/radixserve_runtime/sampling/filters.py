"""Top-k, top-p and min-p as one threshold a row, found without sorting the vocabulary.

Each filter keeps the tokens whose scaled logit is at or above some value, so three filters are one comparison with the
highest of their thresholds. Tokens of equal logit are kept or dropped together: the result does not depend on order.
"""

from __future__ import annotations

import math
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
_NUM_BINS = 1024
_SMALL = 2048

_NEGATIVE_INFINITY = float("-inf")


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
            min_p=tuple(setting.min_p for setting in settings),
        )

    @property
    def is_off(self) -> bool:
        """Whether no row is filtered."""
        return not any(self.top_k) and all(p >= 1.0 for p in self.top_p) and not any(p > 0.0 for p in self.min_p)


def weights(scaled: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Unnormalised probabilities float32 [R, V] (the best token has 1) of the kept tokens, 0 elsewhere.

    `scaled` is float32 [R, V]: logits divided by the temperature, -inf where a token is not allowed, with at least one
    finite value in each row. min-p is taken first, then top-k, then top-p over what the two left, renormalised.
    """
    best = scaled.amax(dim=1, keepdim=True)
    mass = torch.exp(scaled - best)
    if filters.is_off:
        return mass
    threshold = _min_p_threshold(best[:, 0], filters.min_p)
    candidates, rows = _candidates(scaled, filters)
    if any(filters.top_k):
        threshold = torch.maximum(threshold, _top_k_threshold(scaled, candidates, rows, filters.top_k))
    mass = torch.where(scaled >= threshold[:, None], mass, 0.0)
    nucleus = [row for row, top_p in enumerate(filters.top_p) if top_p < 1.0]
    if not nucleus:
        return mass
    total = mass.sum(dim=1, dtype=torch.float64)
    tight = _top_p_threshold(scaled, candidates, rows, threshold, total, best[:, 0], filters.top_p)
    return torch.where(scaled >= tight[:, None], mass, 0.0)


def _min_p_threshold(best: torch.Tensor, min_p: tuple[float, ...]) -> torch.Tensor:
    """float32 [R]: probability >= min_p times the best one's, as a bound on scaled logits."""
    offsets = [math.log(min(p, 1.0)) if p > 0.0 else _NEGATIVE_INFINITY for p in min_p]
    return best + torch.tensor(offsets, dtype=torch.float32, device=best.device)


def _candidates(scaled: torch.Tensor, filters: Filters) -> tuple[torch.Tensor, dict[int, int]]:
    """Best logits [N, K], descending, of the rows that need them, and where in it each of those rows is."""
    counts: dict[int, int] = {}
    for row, (top_k, top_p) in enumerate(zip(filters.top_k, filters.top_p, strict=True)):
        count = top_k if 0 < top_k <= _MAX_BATCHED_TOP_K else 0
        if top_p < 1.0:
            count = max(count, _FIRST_CANDIDATES)
        if count:
            counts[row] = count
    if not counts:
        return scaled[:0, :0], {}
    width = min(max(counts.values()), scaled.shape[1])
    # One selection for all: rows that need fewer get more than they need.
    index = torch.tensor(list(counts), device=scaled.device)
    return scaled[index].topk(width, dim=1).values, {row: place for place, row in enumerate(counts)}


def _top_k_threshold(
    scaled: torch.Tensor, candidates: torch.Tensor, rows: dict[int, int], top_k: tuple[int, ...]
) -> torch.Tensor:
    """float32 [R]: the k-th best logit of each row, -inf where top-k is off."""
    threshold = torch.full((len(top_k),), _NEGATIVE_INFINITY, dtype=torch.float32, device=scaled.device)
    batched = [row for row, k in enumerate(top_k) if 0 < k <= _MAX_BATCHED_TOP_K]
    if batched:
        places = torch.tensor([rows[row] for row in batched], device=scaled.device)
        ranks = torch.tensor([top_k[row] - 1 for row in batched], device=scaled.device)
        threshold[torch.tensor(batched, device=scaled.device)] = candidates[places, ranks]
    for row, k in enumerate(top_k):
        if k > _MAX_BATCHED_TOP_K:
            threshold[row] = scaled[row].kthvalue(scaled.shape[1] - k + 1).values
    return threshold


def _top_p_threshold(
    scaled: torch.Tensor,
    candidates: torch.Tensor,
    rows: dict[int, int],
    threshold: torch.Tensor,
    total: torch.Tensor,
    best: torch.Tensor,
    top_p: tuple[float, ...],
) -> torch.Tensor:
    """float32 [R]: the highest logit bound whose kept tokens hold at least `top_p` of the mass that `threshold` left."""
    nucleus = [row for row, p in enumerate(top_p) if p < 1.0]
    index = torch.tensor(nucleus, device=scaled.device)
    places = torch.tensor([rows[row] for row in nucleus], device=scaled.device)
    share = torch.tensor([top_p[row] for row in nucleus], dtype=torch.float64, device=scaled.device)
    target = share * total[index]
    values = candidates[places]
    kept = values >= threshold[index, None]
    mass = torch.exp(values - best[index, None]).double() * kept
    enough = mass.cumsum(dim=1) >= target[:, None]
    first = enough.int().argmax(dim=1, keepdim=True)
    found = values.gather(1, first)[:, 0]
    tight = threshold.clone()
    tight[index] = torch.maximum(found, threshold[index])
    missed = (~enough.any(dim=1) & kept[:, -1]).tolist()
    covered = enough.any(dim=1).tolist()
    for place, row in enumerate(nucleus):
        if missed[place]:
            tight[row] = _select_nucleus(scaled[row], float(threshold[row]), float(best[row]), float(target[place]))
        elif not covered[place]:
            # All that was left is among the candidates and rounding kept it below the target: nothing to drop.
            tight[row] = threshold[row]
    return tight


def _select_nucleus(scaled: torch.Tensor, floor: float, best: float, target: float) -> float:
    """The same bound for one row [V] whose nucleus is wide: weighted selection by histogram, narrowing to one bin.

    Each round puts the values in bins, finds the bin in which the running mass crosses the target and goes on with that
    bin alone. The highest and the lowest value are never in one bin unless they are equal, so it ends; what is sorted at
    last is one bin's content, never the vocabulary.
    """
    values = scaled[(scaled >= floor) & (scaled > _NEGATIVE_INFINITY)].double()
    above = 0.0
    while True:
        low, high = float(values.min()), float(values.max())
        if low == high:
            return low
        if len(values) <= _SMALL:
            ordered = values.sort(descending=True).values
            running = above + torch.exp(ordered - best).cumsum(0)
            place = int(torch.searchsorted(running, torch.tensor(target, dtype=torch.float64, device=running.device)))
            return float(ordered[min(place, len(ordered) - 1)])
        bins = ((high - values) / (high - low) * (_NUM_BINS - 1)).long()
        mass = torch.bincount(bins, weights=torch.exp(values - best), minlength=_NUM_BINS)
        running = above + mass.cumsum(0)
        crossing = int((running >= target).int().argmax()) if float(running[-1]) >= target else int(bins.max())
        above = float(running[crossing] - mass[crossing])
        values = values[bins == crossing]
