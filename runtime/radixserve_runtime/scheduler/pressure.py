"""Finding pages: evict, preempt, and learn from preemption to let sequences in later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.sequence import Sequence, Status

if TYPE_CHECKING:
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.scheduler.kv import SequencePages
    from radixserve_runtime.scheduler.ledger import Ledger
    from radixserve_runtime.scheduler.state import SchedulerState, Step

#: Steps without preemption after which admission halves the output that it keeps pages back for.
CALM_STEPS = 64


class Pressure:
    """Gives pages to sequences that join a step."""

    def __init__(
        self,
        state: SchedulerState,
        cache: RadixCache,
        pool: PagePool,
        pages: SequencePages,
        ledger: Ledger,
        growth_tokens: int,
    ) -> None:
        self._state = state
        self._cache = cache
        self._pool = pool
        self._pages = pages
        self._ledger = ledger
        self._least_growth_tokens = self._growth_tokens = growth_tokens
        self._calm_steps = 0

    def plan(self, step: Step, sequence: Sequence, count: int) -> None:
        """The next `count` tokens of a sequence join the step. There is room for them, if need be by evicting."""
        end = sequence.num_computed + count
        self._pages.grow(sequence, end, step.copies)
        step.add(sequence, count)
        self._ledger.charge(sequence, end, step.now_s)

    def make_room(self, step: Step, sequence: Sequence, end: int) -> bool:
        """See that pages for a sequence up to `end` are free or can be evicted, preempting less entitled ones that have no chunk.

        A sequence that has the pool for itself always succeeds: `add` refused those that are larger.
        """
        while not self._has_room(sequence, end):
            victim = self._victim(step, sequence, end)
            if victim is None:
                break
            self.preempt(step, victim)
        if not self._has_room(sequence, end):
            # Its path in the tree may lock pages beside its own (where a page was copied, or computed twice).
            self._pages.unpin(sequence)
        if not self._has_room(sequence, end):
            self._pages.forget_own(sequence)
        return self._has_room(sequence, end)

    def _has_room(self, sequence: Sequence, end: int) -> bool:
        return self._pages.missing(sequence, end) <= self._pages.available(sequence)

    def _victim(self, step: Step, sequence: Sequence, end: int) -> Sequence | None:
        """The least entitled running sequence without a chunk whose pages are any use, if it is less entitled than `sequence`."""
        for victim in reversed(step.running):
            if victim is sequence:
                break
            if victim not in self._state.running or victim in step.planned:
                continue
            if self._pages.may_take_from(sequence, victim, end):
                return victim
        return None

    def preempt(self, step: Step, sequence: Sequence) -> None:
        """Back to the front of its class. What it has computed stays in the tree, evictable."""
        tracked = self._state.tracked[sequence]
        self._state.forget_draft(sequence)
        self._state.stop(sequence)
        tracked.num_cached_tokens, tracked.cache_version = (sequence.num_computed if self._cache.enabled else 0), -1
        tracked.num_known_tokens = max(tracked.num_known_tokens, sequence.num_computed)
        self._pages.remember(sequence, tracked.tokens, tracked.program)
        self._pages.detach(sequence, tracked.tokens)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        tracked.since_s = step.now_s
        self._state.waiting.push(sequence, tracked)
        self._state.counters.num_preemptions += 1
        step.preempted.append(sequence)

    def demand(self, sequence: Sequence, num_pages: int) -> int:
        """Pages that a sequence with `num_pages` pages is expected to take: for what it has to compute, and some output."""
        left = max(0, sequence.max_tokens - sequence.num_output_tokens - 1)
        return self._pool.pages_for(sequence.num_tokens - sequence.num_draft + min(left, self._growth_tokens)) - num_pages

    def adapt(self, preempted: bool) -> None:
        """Whoever is let in too early is preempted and computed again. After that admission keeps more pages back, for a while."""
        if preempted:
            self._growth_tokens = min(2 * self._growth_tokens, self._pool.num_pages * self._pool.page_size_tokens)
            self._calm_steps = 0
            return
        self._calm_steps += 1
        if self._calm_steps >= CALM_STEPS:
            self._growth_tokens = max(self._growth_tokens // 2, self._least_growth_tokens)
            self._calm_steps = 0
