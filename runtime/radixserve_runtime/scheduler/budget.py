"""How much prefill a step takes in beside its decodes.

Every token of prefill makes the running streams wait. Cutting a prompt into small chunks costs little by itself, as the
marginal cost of a token is about the same in small chunks; what it costs is one step's fixed cost (reading the weights)
for each chunk, which the decodes of that step pay anyway. So:

- nothing decodes: the whole token budget is for prefill. Where several sequences that will decode want it, only the first
  chunk has all of it, and others join up to `STAGGER_SHARE`: those that begin in one step end in one step where their outputs are as
  long, and so do those that follow them, wave after wave, each of which waits for the prefill of the whole wave. Spread out
  once, they come one by one;
- `itl_target_ms` is set: the predicted step stays below it;
- otherwise a mixed step may take `mixed_step_factor` (2) times the decodes' step alone, with the guesses that it carries, so that a long
  prompt beside many streams at most doubles their gaps. Where several sequences want to be prefilled (and have a slot), the
  extra time is as many times that, up to `BURST_FACTOR`: each of them waits for its first token as long as the streams
  wait for one more. Where more want it than decode, it grows with that ratio, up to `MAX_BACKLOG_FACTOR`: sixteen prompts
  that arrive beside one stream are not starved for the sake of that one, which pays with a longer gap while they start.
  All that is for prompts of the streams' own tenant: those of another tenant count as one (`count_backlog`).

Prompts of the background take no such bursts: whoever comes meanwhile waits for the end of the step, and for a background's first token
nobody waits. Decodes of a lower class, and of tenants that are far ahead of one that waits, are not spared: what is bounded for the sake
of interactive streams isn't put off for background ones. The other way round, beside prefill of a higher class lower ones
take in only what they could beside decodes, so that the first token of that prefill comes soon.

A step takes in at least `min_chunk_tokens` of the first prompt whatever the bound says, so that prefill always progresses.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.cost import CostModel, StepFeatures
from radixserve_runtime.scheduler.policy import BACKGROUND_RANK

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping
    from collections.abc import Sequence as Collection

    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.plan import Chunk

BURST_FACTOR = 4.0
MAX_BACKLOG_FACTOR = 16.0

#: Of the token budget.
STAGGER_SHARE = 0.5

#: For a decode of a tenant that is ahead of others that wait: their prefill doesn't spare it. Below every class.
UNPROTECTED = BACKGROUND_RANK + 1


class StepBudget:
    """What is left of one step. Made anew for each step."""

    def __init__(
        self,
        num_tokens: int,
        slack_s: float,
        min_chunk_tokens: int,
        cost: CostModel,
        slacks_s: Mapping[int, float] | None = None,
        beside_s: float = math.inf,
        num_tokens_beside: int | None = None,
    ) -> None:
        """`num_tokens_beside`: what the first chunk and those beside it may have together, unless the first takes more."""
        self._num_tokens = num_tokens
        self._num_beside = num_tokens if num_tokens_beside is None else num_tokens_beside
        self._slack_s = slack_s
        self._slacks_s = slacks_s or {}
        self._beside_s = beside_s
        self._min_chunk_tokens = min_chunk_tokens
        self._cost = cost
        self._used_s = 0.0
        self._first = True
        self._best_rank = math.inf

    def _left_s(self, rank: int) -> float:
        slack_s = self._slacks_s.get(rank, self._slack_s)
        if self._best_rank < rank:
            slack_s = min(slack_s, self._beside_s)
        return slack_s - self._used_s

    def grant(self, start: int, wanted: int, rank: int = 1) -> int:
        """How many of the `wanted` tokens from position `start` on may go into the step, for a sequence of a class; 0: not this step."""
        least = min(wanted, self._min_chunk_tokens)
        left_s = self._left_s(rank)
        within = wanted if math.isinf(left_s) else self._cost.prefill_within(left_s, start)
        if self._first:
            return min(wanted, max(within, least), self._num_tokens)
        granted = min(wanted, within, self._num_tokens)
        return granted if granted >= least else 0

    def take(self, start: int, count: int, rank: int = 1) -> None:
        """The step takes in this chunk."""
        self._first = False
        self._best_rank = min(self._best_rank, rank)
        self._num_beside -= count
        self._num_tokens = min(self._num_tokens - count, max(0, self._num_beside))
        self._used_s += self._cost.prefill_cost(start, count)

    @property
    def is_spent(self) -> bool:
        """Whether no further chunk fits."""
        most_s = max(self._slack_s, *self._slacks_s.values()) if self._slacks_s else self._slack_s
        return self._num_tokens <= 0 or (not self._first and most_s <= self._used_s)


def count_backlog(decoding: Iterable[Hashable], wanting: Collection[Hashable]) -> int:
    """How many prefills count against the decodes' pace, by the tenants of both: for each tenant that decodes its own, and one for each other tenant; the least of that.

    So one tenant's prompts, however many, slow another's streams no more than one prompt does.
    """
    counts = Counter(wanting)
    return min((counts[tenant] + len(counts) - (tenant in counts) for tenant in set(decoding)), default=len(wanting))


def step_budget(
    config: SchedulerConfig,
    cost: CostModel,
    decodes: Collection[Chunk],
    ranks: Collection[int],
    num_prefills: int,
    num_beginners: int = 0,
) -> StepBudget:
    """The budget of a step that has these decode chunks already, with their classes (`UNPROTECTED`: nobody waits for it).

    `num_prefills` sequences have or could have a slot and want prefill (`count_backlog`), `num_beginners` of all those will decode.
    """
    num_tokens = config.max_batch_tokens - sum(chunk.count for chunk in decodes)
    if not num_prefills:
        return StepBudget(num_tokens, math.inf, config.min_chunk_tokens, cost)
    decode_s = cost.pure_decode(StepFeatures.of(decodes))
    slacks_s = {rank: _slack(config, decode_s, ranks, rank, num_prefills) for rank in range(UNPROTECTED)}
    beside_s = decode_s * (config.mixed_step_factor - 1.0)
    num_beside = int(config.max_batch_tokens * STAGGER_SHARE) if num_beginners > 1 and not decodes else None
    return StepBudget(num_tokens, slacks_s[1], config.min_chunk_tokens, cost, slacks_s, beside_s, num_beside)


def _slack(config: SchedulerConfig, decode_s: float, ranks: Collection[int], rank: int, num_prefills: int) -> float:
    """Seconds of prefill that a step may take in for a class beside its decodes."""
    if not ranks:
        return math.inf
    if config.itl_target_ms > 0:
        return config.itl_target_ms / 1e3 - decode_s
    num_protected = sum(other <= rank for other in ranks)
    if not num_protected:
        return math.inf
    if rank == BACKGROUND_RANK:
        num_prefills = 1  # nobody waits for its first token, and whoever comes meanwhile waits for the step
    backlog = min(max(1.0, min(num_prefills, BURST_FACTOR), num_prefills / num_protected), MAX_BACKLOG_FACTOR)
    return decode_s * (config.mixed_step_factor - 1.0) * backlog
