"""Letting waiting sequences start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import owner_of
from radixserve_runtime.scheduler.inflight import Leaders
from radixserve_runtime.scheduler.kv import match_limit
from radixserve_runtime.scheduler.sequence import Sequence, Status

if TYPE_CHECKING:
    from radixserve_runtime.cache.accounts import Owner
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.scheduler.budget import StepBudget
    from radixserve_runtime.scheduler.kv import SequencePages
    from radixserve_runtime.scheduler.policy import Policy
    from radixserve_runtime.scheduler.pressure import Pressure
    from radixserve_runtime.scheduler.state import SchedulerState, Step

#: In-flight sharing is worth a wait from this many tokens on, or a page where pages are larger.
MIN_SHARED_TOKENS = 16


@dataclass(slots=True)
class KeptBack:
    """Pages that those who run are expected to take yet, and the owners whose own limit lets nothing more start in this step."""

    total: int = 0
    by_owner: dict[Owner, int] = field(default_factory=dict["Owner", int])
    held: set[Owner] = field(default_factory=set["Owner"])

    def add(self, sequence: Sequence, num_pages: int) -> None:
        """A sequence runs."""
        owner = owner_of(sequence.namespace)
        self.total += num_pages
        self.by_owner[owner] = self.by_owner.get(owner, 0) + num_pages

    def holds(self, sequence: Sequence) -> bool:
        """Whether its tenant must wait for its own."""
        return owner_of(sequence.namespace) in self.held


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
        kept_back = KeptBack()
        for sequence in running:
            kept_back.add(sequence, self._pressure.demand(sequence, len(sequence.pages)))
        leaders = self._leaders()
        for sequence in self._in_order(candidates, now_s):
            if len(running) >= self._num_slots or budget.is_spent:
                break
            if kept_back.holds(sequence):
                continue
            tracked = self._state.tracked[sequence]
            if leaders.computes_for(sequence, tracked.tokens, tracked.num_cached_tokens, match_limit(sequence)):
                continue
            demand = self._start(step, sequence, budget, kept_back)
            if demand is None:
                if kept_back.holds(sequence):
                    continue  # its own tenant's limit is in its way, and nobody else's
                # The next in order may be smaller, but this one would be passed over for ever.
                break
            kept_back.add(sequence, demand)
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

    def _start(self, step: Step, sequence: Sequence, budget: StepBudget, kept_back: KeptBack) -> int | None:
        """Give a sequence a slot and its first chunk; returns the pages it is expected to take, or None if it must wait.

        With nothing running, room is made for it.
        """
        tracked, alone = self._state.tracked[sequence], not self._state.running
        match = self._cache.match(sequence.namespace, tracked.tokens, match_limit(sequence))
        count = budget.grant(match.num_tokens, sequence.num_tokens - match.num_tokens)
        demand = self._pressure.demand(sequence, self._pool.pages_for(match.num_tokens))
        # More seems available than will be when the matched pages are locked: this only spares the attempt.
        if not count or (not alone and self._lacks(sequence, demand, kept_back)):
            return None
        self._pages.attach(sequence, match)
        demand += self._pages.missing(sequence, sequence.num_computed)
        if alone:
            self._pressure.make_room(step, sequence, sequence.num_computed + 1)
        elif self._lacks(sequence, demand, kept_back):
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

    def _lacks(self, sequence: Sequence, demand: int, kept_back: KeptBack) -> bool:
        owner = owner_of(sequence.namespace)
        if self._pages.is_held_back(sequence, kept_back.by_owner.get(owner, 0) + demand):
            kept_back.held.add(owner)
            return True
        return kept_back.total + demand > self._pages.available(sequence)

    def _count(self, sequence: Sequence, now_s: float) -> None:
        if sequence.first_scheduled_s < 0:
            sequence.first_scheduled_s = now_s
        if sequence.num_cached_tokens < 0:
            sequence.num_cached_tokens = min(sequence.num_computed, sequence.num_prompt_tokens)
            self._state.counters.num_prompt_tokens += sequence.num_prompt_tokens
            self._state.counters.num_cached_tokens += sequence.num_cached_tokens
