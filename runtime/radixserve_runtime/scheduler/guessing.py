"""Which decodes of a step get a guess at what follows (lookup.py), and how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.cost import StepFeatures
from radixserve_runtime.scheduler.lookup import MAX_GUESS, Candidate, guess, most_added_s
from radixserve_runtime.scheduler.policy import BACKGROUND_RANK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve_runtime.scheduler.accounts import Tenant
    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.cost import CostModel
    from radixserve_runtime.scheduler.lookup import Guess
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState

#: In tokens of prefill: a guessed token needs logits too, and to be drawn for.
_ROW_COST = 1.25


class Guessing:
    """Guesses for the scheduler's sequences.

    Tenants have equal parts of what guesses may add to a step. Of a tenant's sequences only those of its highest class that decodes guess:
    what is put off for the sake of a stream doesn't slow its steps. The background guesses where nothing else decodes, and little even
    then, so that its steps stay short for those of a higher class that may come.
    """

    def __init__(self, state: SchedulerState, cost: CostModel, config: SchedulerConfig) -> None:
        self._state = state
        self._cost = cost
        self._config = config

    def guess(self, decoding: list[Sequence], room: int, prompts_wait: bool) -> list[tuple[Sequence, Guess]]:
        """What to draft, for those of a step's decodes that have no draft yet: `room` tokens at most, drafts that there are included.

        `prompts_wait`: to be read in the same step.
        """
        if not self._config.prompt_lookup or not decoding:
            return []
        best: dict[Tenant, int] = {}
        for sequence in decoding:
            tenant, rank = self._state.tracked[sequence].tenant, self._state.class_rank(sequence)
            best[tenant] = min(best.get(tenant, rank), rank)
        only_background = min(best.values()) == BACKGROUND_RANK
        groups = {tenant: number for number, tenant in enumerate(best)}
        free = [sequence for sequence in decoding if self._may_guess(sequence, best, only_background)]
        step_s = self._cost.pure_decode(StepFeatures.of_decodes(sequence.num_computed for sequence in decoding))
        step_s += sum(self._cost.prefill_cost(sequence.num_computed, sequence.num_draft) for sequence in decoding)
        most_s = most_added_s(
            step_s,
            self._config.itl_target_ms / 1e3,
            others_wait=only_background or len(best) > 1,
            prompts_wait=prompts_wait,
        )
        guesses = guess(
            [self._candidate(sequence, groups) for sequence in free],
            len(decoding),
            step_s,
            room - sum(sequence.num_draft for sequence in decoding),
            most_s / len(best),
        )
        return [(sequence, found) for sequence, found in zip(free, guesses, strict=True) if found]

    def _may_guess(self, sequence: Sequence, best: Mapping[Tenant, int], only_background: bool) -> bool:
        if sequence.num_draft or not sequence.num_output_tokens:
            return False
        rank = self._state.class_rank(sequence)
        return rank == best[self._state.tracked[sequence].tenant] and (rank < BACKGROUND_RANK or only_background)

    def _candidate(self, sequence: Sequence, groups: Mapping[Tenant, int]) -> Candidate:
        tracked = self._state.tracked[sequence]
        return Candidate(
            tracked.tokens,
            tracked.guesses,
            min(MAX_GUESS, sequence.max_tokens - sequence.num_output_tokens - 1),
            _ROW_COST * self._cost.prefill_cost(sequence.num_computed, 1),
            groups[tracked.tenant],
        )
