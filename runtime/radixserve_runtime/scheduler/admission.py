"""Letting waiting sequences start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.inflight import Leaders
from radixserve_runtime.scheduler.kv import match_limit
from radixserve_runtime.scheduler.sequence import Sequence, Status

if TYPE_CHECKING:
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.scheduler.budget import StepBudget
    from radixserve_runtime.scheduler.kv import SequencePages
    from radixserve_runtime.scheduler.policy import Policy
    from radixserve_runtime.scheduler.pressure import Pressure
    from radixserve_runtime.scheduler.state import SchedulerState, Step

#: In-flight sharing is worth a wait from this many tokens on, or a page where pages are larger.
MIN_SHARED_TOKENS = 16


class Admission:
    """Starts sequences by the policy's order, as far as slots, the step's budget and pages allow."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        cache: RadixCache,
        pool: PagePool,
        pages: SequencePages,
        pressure: Pressure,
        num_slots: int,
    ) -> None:
        self._state = state
        self._policy = policy
        self._cache = cache
        self._pool = pool
        self._pages = pages
        self._pressure = pressure
        self._num_slots = num_slots

    def admit(self, step: Step, candidates: list[Sequence], budget: StepBudget, now_s: float) -> None:
        """Start what can start. Pages are kept back for what those who run have yet to compute, and for some of their output."""
        running = self._state.running
        kept_back = sum(self._pressure.demand(sequence, len(sequence.pages)) for sequence in running)
        leaders = self._leaders()
        for sequence in self._in_order(candidates, now_s):
            if len(running) >= self._num_slots or budget.is_spent:
                break
            tracked = self._state.tracked[sequence]
            if leaders.computes_for(sequence, tracked.tokens, tracked.num_cached_tokens, match_limit(sequence)):
                continue
            demand = self._start(step, sequence, budget, kept_back)
            if demand is None:
                # The next in order may be smaller, but this one would be passed over for ever.
                break
            kept_back += demand
            self._count(sequence, now_s)
            if sequence.num_uncomputed > 1 and self._cache.enabled:
                leaders.add(sequence, tracked.tokens)

    def _leaders(self) -> Leaders:
        leaders = Leaders(max(MIN_SHARED_TOKENS, self._pool.page_size_tokens))
        # Without a cache there is nothing to share through, and nobody leads.
        for sequence in self._state.running if self._cache.enabled else ():
            if sequence.num_uncomputed > 1:
                leaders.add(sequence, self._state.tracked[sequence].tokens)
        return leaders

    def _in_order(self, candidates: list[Sequence], now_s: float) -> list[Sequence]:
        """By the policy's order. A candidate is matched again only if the tree has grown since."""
        version, keys = self._cache.version, dict[Sequence, tuple[float, ...]]()
        for sequence in candidates:
            tracked = self._state.tracked[sequence]
            if tracked.cache_version != version:
                match = self._cache.match(sequence.namespace, tracked.tokens, match_limit(sequence))
                tracked.num_cached_tokens, tracked.cache_version = match.num_tokens, version
            keys[sequence] = self._policy.key(sequence, tracked.num_cached_tokens, now_s)
        return sorted(candidates, key=keys.__getitem__)

    def _start(self, step: Step, sequence: Sequence, budget: StepBudget, kept_back: int) -> int | None:
        """Give a sequence a slot and its first chunk; returns the pages it is expected to take, or None if it must wait.

        With nothing running, room is made for it.
        """
        tracked, alone = self._state.tracked[sequence], not self._state.running
        match = self._cache.match(sequence.namespace, tracked.tokens, match_limit(sequence))
        count = budget.grant(match.num_tokens, sequence.num_tokens - match.num_tokens)
        demand = self._pressure.demand(sequence, self._pool.pages_for(match.num_tokens))
        # More seems available than will be when the matched pages are locked: this only spares the attempt.
        if not count or (not alone and kept_back + demand > self._pages.available(sequence)):
            return None
        self._pages.attach(sequence, match)
        demand += self._pages.missing(sequence, sequence.num_computed)
        if alone:
            self._pressure.make_room(step, sequence, sequence.num_computed + 1)
        elif kept_back + demand > self._pages.available(sequence):
            count = 0
        count = self._pages.fitting(sequence, count)
        if not count:
            self._pages.detach(sequence, tracked.tokens)
            return None
        self._state.waiting.remove(sequence)
        self._state.running[sequence] = None
        sequence.status = Status.RUNNING
        self._pressure.plan(step, sequence, count)
        budget.take(sequence.num_computed, count)
        return demand

    def _count(self, sequence: Sequence, now_s: float) -> None:
        if sequence.first_scheduled_s < 0:
            sequence.first_scheduled_s = now_s
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = min(sequence.num_computed, sequence.num_prompt_tokens)
            self._state.counters.num_prompt_tokens += sequence.num_prompt_tokens
            self._state.counters.num_cached_tokens += sequence.num_cached_tokens
