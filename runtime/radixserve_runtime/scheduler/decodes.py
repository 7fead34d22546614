"""The decodes of a step: a token of every sequence whose prompt is computed, and drafts of what may follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.guessing import Guessing
    from radixserve_runtime.scheduler.kv import SequencePages
    from radixserve_runtime.scheduler.pressure import Pressure
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState, Step

#: Draft tokens of one step, all sequences together. Each is drawn for in turn, which the others' next tokens wait for.
MAX_DRAFT_ROWS = 64


class Decodes:
    """Plans decodes, and keeps the drafts that go with them."""

    def __init__(
        self, state: SchedulerState, pages: SequencePages, pressure: Pressure, guessing: Guessing, config: SchedulerConfig
    ) -> None:
        self._state = state
        self._pages = pages
        self._pressure = pressure
        self._guessing = guessing
        self._config = config

    def draft(self, sequence: Sequence, token_ids: Iterable[int], num_matched: int = 0) -> None:
        """See `Scheduler.draft`. `num_matched` is that of a guess (lookup.py)."""
        if sequence.num_uncomputed != 1 or sequence.num_draft:
            raise ValueError("only a sequence that is about to decode can have a draft, and one at a time")
        before = sequence.num_tokens
        sequence.token_ids.extend(token_ids)
        sequence.num_draft = sequence.num_tokens - before
        tracked = self._state.tracked[sequence]
        tracked.tokens.extend(sequence.token_ids[before:])
        tracked.guesses.num_matched = num_matched

    def accept(self, sequence: Sequence) -> None:
        """See `Scheduler.accept_draft`."""
        if not sequence.num_draft:
            raise ValueError("there is no draft")
        sequence.num_draft -= 1
        self._state.tracked[sequence].guesses.settle(accepted=True)
        self._state.counters.num_output_tokens += 1
        self._state.counters.num_accepted_draft_tokens += 1

    def reject(self, sequence: Sequence) -> None:
        """See `Scheduler.reject_draft`."""
        self._state.tracked[sequence].guesses.settle(accepted=False)
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget what is left of a draft, if there is one, and its KV."""
        if sequence.num_draft:
            self._state.forget_draft(sequence)
            self._pages.truncate(sequence, self._state.tracked[sequence].tokens)

    def plan(self, step: Step, *, may_start: bool) -> None:
        """All decodes join the step, or lose their slots where there are no pages. `may_start`: others may have a slot in it, too."""
        # For drafts, beside a token for each: prefill must find room too.
        room = min(MAX_DRAFT_ROWS, (self._config.max_batch_tokens - len(step.running)) // 2)
        decoding = self._decoding(step)
        prompts_wait = may_start or len(decoding) < len(self._state.running)
        for sequence, found in self._guessing.guess(decoding, room, prompts_wait):
            self.draft(sequence, found.token_ids, found.num_matched)
        # Nobody is preempted for what may turn out otherwise: pages for one token each come first.
        needed = {sequence: self._pages.missing(sequence, sequence.num_computed + 1) for sequence in decoding}
        num_needed = sum(needed.values())
        for sequence in decoding:
            num_needed -= needed[sequence]
            if sequence not in self._state.running:
                continue
            if sequence.num_draft > room or not self._has_pages_for_draft(sequence, num_needed):
                self.drop(sequence)
            room -= sequence.num_draft
            self._state.counters.num_draft_tokens += sequence.num_draft
            if self._pressure.make_room(step, sequence, sequence.num_tokens):
                self._pressure.plan(step, sequence, sequence.num_uncomputed)
            else:
                self._pressure.preempt(step, sequence)

    def _decoding(self, step: Step) -> list[Sequence]:
        running = [sequence for sequence in step.running if sequence in self._state.running]
        for sequence in running:
            if sequence.num_uncomputed == 0:
                sequence.num_computed -= 1  # it was cut back to what is computed: its last token's logits are wanted again
        return [sequence for sequence in running if sequence.num_uncomputed == 1 + sequence.num_draft]

    def _has_pages_for_draft(self, sequence: Sequence, num_needed: int) -> bool:
        return self._pages.missing(sequence, sequence.num_tokens) + num_needed <= self._pages.available(sequence)
