"""How much prefill a step takes in beside its decodes.

Every token of prefill makes the running streams wait. Cutting a prompt into small chunks costs little by itself, as the
marginal cost of a token is about the same in small chunks; what it costs is one step's fixed cost (reading the weights)
for each chunk, which the decodes of that step pay anyway. So:

- nothing decodes: the whole token budget is for prefill;
- `itl_target_ms` is set: the predicted step stays below it;
- otherwise a mixed step may take `mixed_step_factor` (2) times the pure decode step of the same batch, so that a long
  prompt beside many streams at most doubles their gaps. Where more sequences want to be prefilled (and have a slot)
  than decode, the extra time grows with that ratio, up to `MAX_BACKLOG_FACTOR`: sixteen prompts that arrive beside one
  stream are not starved for the sake of that one, which pays with a longer gap while they start.

A step takes in at least `min_chunk_tokens` of the first prompt whatever the bound says, so that prefill always progresses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.cost import CostModel, StepFeatures

if TYPE_CHECKING:
    from collections.abc import Sequence as Collection

    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.plan import Chunk

MAX_BACKLOG_FACTOR = 16.0


class StepBudget:
    """What is left of one step. Made anew for each step."""

    def __init__(self, num_tokens: int, slack_s: float, min_chunk_tokens: int, cost: CostModel) -> None:
        self._num_tokens = num_tokens
        self._slack_s = slack_s
        self._min_chunk_tokens = min_chunk_tokens
        self._cost = cost
        self._first = True

    def grant(self, start: int, wanted: int) -> int:
        """How many of the `wanted` tokens from position `start` on may go into the step; 0: not this step."""
        least = min(wanted, self._min_chunk_tokens)
        within = wanted if math.isinf(self._slack_s) else self._cost.prefill_within(self._slack_s, start)
        if self._first:
            return min(wanted, max(within, least), self._num_tokens)
        granted = min(wanted, within, self._num_tokens)
        return granted if granted >= least else 0

    def take(self, start: int, count: int) -> None:
        """The step takes in this chunk."""
        self._first = False
        self._num_tokens -= count
        self._slack_s -= self._cost.prefill_cost(start, count)

    @property
    def is_spent(self) -> bool:
        """Whether no further chunk fits."""
        return self._num_tokens <= 0 or (not self._first and self._slack_s <= 0)


def step_budget(config: SchedulerConfig, cost: CostModel, decodes: Collection[Chunk], num_prefills: int) -> StepBudget:
    """The budget of a step that has these decode chunks already; `num_prefills` sequences have or could have a slot and want prefill."""
    num_tokens = config.max_batch_tokens - len(decodes)
    slack_s = math.inf
    if decodes and num_prefills:
        decode_s = cost.pure_decode(StepFeatures.of(decodes))
        if config.itl_target_ms > 0:
            slack_s = config.itl_target_ms / 1e3 - decode_s
        else:
            backlog = min(max(1.0, num_prefills / len(decodes)), MAX_BACKLOG_FACTOR)
            slack_s = decode_s * (config.mixed_step_factor - 1.0) * backlog
    return StepBudget(num_tokens, slack_s, config.min_chunk_tokens, cost)
