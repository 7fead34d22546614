"""From logits to tokens, for a whole batch.

Log-probabilities are of the raw logits. Then come penalties and bias, `min_tokens` and the grammar's mask (edits.py),
the temperature, and the filters (filters.py). Rows don't see each other: what a row draws depends on its logits, its
settings and (seed, position) alone, and a row that can't be drawn from fails alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from radixserve_runtime.sampling.draws import uniform
from radixserve_runtime.sampling.edits import edit_rows
from radixserve_runtime.sampling.filters import Filters, apply_filters
from radixserve_runtime.sampling.logprobs import token_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.protocol import TokenLogprob
    from radixserve_runtime.sampling.state import RowState

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token that a row drew; `logprob` where the request asked for it."""

    token_id: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class SamplingFailure:
    """A row from which nothing can be drawn. The other rows are not touched by it."""

    message: str


Outcome: TypeAlias = SampledToken | SamplingFailure

NOTHING_ALLOWED = "no token may be drawn here: logit_bias, min_tokens and the grammar rule all out"
"""A request that contradicts itself; every other failure is ours."""


class Sampler:
    """Draws one token a row. Holds no state: `RowState` does, and the caller appends what it keeps."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def sample(
        self, logits: torch.Tensor, rows: Sequence[RowState], masks: Sequence[torch.Tensor | None] | None = None
    ) -> list[Outcome]:
        """One outcome a row, in order.

        logits: float32 [R, V], any device; left as they are. masks: for each row a grammar mask (int32 [ceil(V / 32)] on
        the CPU, bit set = allowed) or None. Raises `ValueError` where shapes don't fit.
        """
        if logits.shape != (len(rows), self._vocab_size):
            raise ValueError(f"logits of shape {tuple(logits.shape)} for {len(rows)} rows of {self._vocab_size} tokens")
        if not rows:
            return []
        row_masks = list(masks) if masks is not None else [None] * len(rows)
        if len(row_masks) != len(rows):
            raise ValueError(f"{len(row_masks)} grammar masks for {len(rows)} rows")
        raw = logits.float()
        # Two reductions: on the CPU aminmax takes ten times as long as both.
        usable: list[bool] = (raw.amin(dim=1).isfinite() & raw.amax(dim=1).isfinite()).tolist()
        drawn = self._draw(raw, rows, row_masks, usable)
        return self._with_logprobs(raw, rows, usable, drawn)

    def _draw(
        self, raw: torch.Tensor, rows: Sequence[RowState], masks: Sequence[torch.Tensor | None], usable: Sequence[bool]
    ) -> list[int]:
        """Token of each row, -1 where none can be drawn."""
        plain: list[int] = []
        greedy: list[int] = []
        random: list[int] = []
        for index, row in enumerate(rows):
            if not usable[index]:
                continue
            if not row.is_greedy:
                random.append(index)
            elif row.edits_logits or masks[index] is not None:
                greedy.append(index)
            else:
                plain.append(index)
        if len(plain) == len(rows):
            return _argmax(raw).tolist()
        drawn = [-1] * len(rows)
        if plain:
            _store(drawn, plain, _argmax(_take(raw, plain)).tolist())
        if greedy:
            edited = _edited(raw, greedy, rows, masks)
            tokens = torch.where(edited.amax(dim=1).isfinite(), _argmax(edited), -1)
            _store(drawn, greedy, tokens.tolist())
        if random:
            _store(drawn, random, self._draw_random(_edited(raw, random, rows, masks), [rows[index] for index in random]))
        return drawn

    def _draw_random(self, edited: torch.Tensor, rows: Sequence[RowState]) -> list[int]:
        """Draws from edited logits [R, V], which are overwritten."""
        device = edited.device
        best = edited.amax(dim=1)
        possible = best.isfinite()
        temperatures = torch.tensor([row.sampling.temperature for row in rows], dtype=torch.float32, device=device)
        # The best logit becomes 0 first: a tiny temperature then can't overflow to infinity.
        scaled = edited.sub_(best[:, None]).div_(temperatures[:, None])
        if not bool(possible.all()):
            scaled[~possible] = 0.0
        mass = scaled.exp_()
        apply_filters(mass, Filters.of([row.sampling for row in rows], self._vocab_size))
        points = [uniform(row.sampling.seed, row.num_output_tokens) for row in rows]
        tokens = _inverse_cdf(mass, torch.tensor(points, dtype=torch.float64, device=device))
        return torch.where(possible, tokens, -1).tolist()

    def _with_logprobs(
        self, raw: torch.Tensor, rows: Sequence[RowState], usable: Sequence[bool], drawn: Sequence[int]
    ) -> list[Outcome]:
        wanted = [index for index, row in enumerate(rows) if row.sampling.logprobs >= 0 and drawn[index] >= 0]
        entries: dict[int, TokenLogprob] = {}
        if wanted:
            found = token_logprobs(
                _take(raw, wanted), [drawn[index] for index in wanted], [rows[index].sampling.logprobs for index in wanted]
            )
            entries = dict(zip(wanted, found, strict=True))
        outcomes: list[Outcome] = []
        for index, token_id in enumerate(drawn):
            if token_id >= 0:
                outcomes.append(SampledToken(token_id, entries.get(index)))
            elif usable[index]:
                outcomes.append(SamplingFailure(NOTHING_ALLOWED))
            else:
                outcomes.append(SamplingFailure("the model's logits for this sequence are not finite (NaN or infinity)"))
        return outcomes


def _take(raw: torch.Tensor, index: list[int]) -> torch.Tensor:
    """These rows of [R, V]; `raw` itself when they are all of it."""
    return raw if len(index) == len(raw) else raw[torch.tensor(index, device=raw.device)]


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """Token ids int64 [R] of the highest logits [R, V], the lowest id of equals."""
    if logits.device.type == "cpu":
        # numpy's is vectorised and torch's is not: a tenth of the time over 49k tokens.
        return torch.from_numpy(logits.numpy().argmax(axis=1))
    return logits.argmax(dim=1)


def _edited(raw: torch.Tensor, index: list[int], rows: Sequence[RowState], masks: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """A copy of these rows with penalties, bias and masks applied."""
    copy = raw[torch.tensor(index, device=raw.device)]
    if any(rows[place].edits_logits or masks[place] is not None for place in index):
        edit_rows(copy, [rows[place] for place in index], [masks[place] for place in index])
    return copy


def _store(drawn: list[int], index: list[int], tokens: list[int]) -> None:
    for place, token_id in zip(index, tokens, strict=True):
        drawn[place] = token_id


def _inverse_cdf(mass: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Token ids int64 [R]: where the running sum of `mass` [R, V], in order of ids, passes `points` [R] of its total.

    Sums are float64 and in two levels (blocks, then inside one block), so that no running sum over the vocabulary is made.
    """
    num_rows, vocab_size = mass.shape
    padding = -vocab_size % _BLOCK
    if padding:
        mass = torch.nn.functional.pad(mass, (0, padding))
    blocks = mass.view(num_rows, -1, _BLOCK)
    sums = blocks.sum(dim=2, dtype=torch.float64)
    running = sums.cumsum(dim=1)
    target = (points * running[:, -1])[:, None]
    block = _first_above(running, target)
    rest = target - (running.gather(1, block) - sums.gather(1, block))
    inner = blocks[torch.arange(num_rows, device=mass.device), block[:, 0]].double().cumsum(dim=1)
    return (block * _BLOCK + _first_above(inner, rest))[:, 0]


def _first_above(running: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """First place [R, 1] where the running sum [R, N] exceeds the target; where rounding leaves none, the last place that added mass."""
    last = torch.searchsorted(running, running[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(running, target, right=True), last)
