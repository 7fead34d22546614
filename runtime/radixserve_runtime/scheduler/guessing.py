"""Which decodes of a step get a guess at what follows (lookup.py), and how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.cost import StepFeatures
from radixserve_runtime.scheduler.lookup import MAX_GUESS, Candidate, guess, most_added_s
from radixserve_runtime.scheduler.plan import Chunk
from radixserve_runtime.scheduler.policy import BACKGROUND_RANK

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.cost import CostModel
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState

#: In tokens of prefill: a guessed token needs logits too, and to be drawn for.
_ROW_COST = 1.25


class Guessing:
    """Guesses for the scheduler's sequences.

    A class of lower priority gets none while a higher one decodes: what is put off for the sake of a stream doesn't slow its steps. The
    background's steps stay short by themselves, for those of a higher class that may come.
    """

    def __init__(self, state: SchedulerState, cost: CostModel, config: SchedulerConfig) -> None:
        self._state = state
        self._cost = cost
        self._config = config

    def guess(self, decoding: list[Sequence], room: int, prompts_wait: bool) -> list[tuple[Sequence, list[int]]]:
        """What to draft, for those of a step's decodes that have no draft yet: `room` tokens at most, drafts that there are included.

        `prompts_wait`: to be read in the same step.
        """
        if not self._config.prompt_lookup or not decoding:
            return []
        tracked = self._state.tracked
        ranks = [self._state.class_rank(sequence) for sequence in decoding]
        best = min(ranks)
        free = [
            sequence
            for sequence, rank in zip(decoding, ranks, strict=True)
            if rank == best and not sequence.num_draft and sequence.num_output_tokens
        ]
        step_s = self._cost.pure_decode(StepFeatures.of(Chunk(sequence, sequence.num_computed, 1) for sequence in decoding))
        others_wait = best == BACKGROUND_RANK or len({tracked[sequence].tenant for sequence in decoding}) > 1
        target_s = self._config.itl_target_ms / 1e3
        most_s = most_added_s(step_s, target_s, others_wait=others_wait, prompts_wait=prompts_wait)
        guesses = guess(
            [
                Candidate(
                    tracked[sequence].tokens,
                    tracked[sequence].guesses,
                    min(MAX_GUESS, sequence.max_tokens - sequence.num_output_tokens - 1),
                    _ROW_COST * self._cost.prefill_cost(sequence.num_computed, 1),
                )
                for sequence in free
            ],
            len(decoding),
            step_s,
            room - sum(sequence.num_draft for sequence in decoding),
            most_s,
        )
        drafts: list[tuple[Sequence, list[int]]] = []
        for sequence, found in zip(free, guesses, strict=True):
            tracked[sequence].guesses.num_matched = found.num_matched if found else 0
            if found:
                drafts.append((sequence, found.token_ids))
        return drafts

    def settle(self, sequence: Sequence, *, accepted: bool) -> None:
        """The first token that is left of a sequence's draft was drawn, or another one."""
        self._state.tracked[sequence].guesses.settle(accepted)
