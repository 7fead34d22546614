"""Letting waiting sequences start."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import owner_of
from radixserve_runtime.scheduler.inflight import Leaders
from radixserve_runtime.scheduler.kv import match_limit
from radixserve_runtime.scheduler.policy import priority_rank

if TYPE_CHECKING:
    from radixserve_runtime.cache.accounts import Owner
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.scheduler.budget import StepBudget
    from radixserve_runtime.scheduler.holding import Holding
    from radixserve_runtime.scheduler.kv import SequencePages
    from radixserve_runtime.scheduler.pressure import Pressure
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState, Step

#: In-flight sharing is worth a wait from this many tokens on, or a page where pages are larger.
MIN_SHARED_TOKENS = 16


@dataclass(slots=True)
class KeptBack:
    """Pages that those who run are expected to take yet, and the owners whose own limit lets nothing more start in this step."""

    total: int = 0
    by_owner: dict[Owner, int] = field(default_factory=dict["Owner", int])
    held: set[Owner] = field(default_factory=set["Owner"])
    to_leases: set[Owner] = field(default_factory=set["Owner"])
    """Owners whose newcomers wait for what is leased."""

    def add(self, sequence: Sequence, num_pages: int) -> None:
        """A sequence runs."""
        owner = owner_of(sequence.namespace)
        self.total += num_pages
        self.by_owner[owner] = self.by_owner.get(owner, 0) + num_pages

    def holds(self, sequence: Sequence) -> bool:
        """Whether its tenant must wait for its own."""
        return owner_of(sequence.namespace) in self.held

    def leaves_to_leases(self, sequence: Sequence) -> bool:
        """Whether a newcomer of its tenant waits for leased pages: then no other of them goes before it."""
        return owner_of(sequence.namespace) in self.to_leases


class Admission:
    """Gives sequences a slot and their first chunk, as far as slots, the step's budget and pages allow."""

    def __init__(
        self,
        state: SchedulerState,
        cache: RadixCache,
        pool: PagePool,
        pages: SequencePages,
        pressure: Pressure,
        holding: Holding,
        num_slots: int,
    ) -> None:
        self._state = state
        self._holding = holding
        self._cache = cache
        self._pool = pool
        self._pages = pages
        self._pressure = pressure
        self._num_slots = num_slots
        self._num_kept_back: int | None = None
        """As it was when it was first asked for in this step."""

    def look(self, now_s: float) -> None:
        """A step is planned."""
        self._holding.begin(now_s)
        self._num_kept_back = None

    def kept_back(self) -> KeptBack:
        """Pages for what those who run have yet to compute, and for some of their output. O(running)."""
        kept_back = KeptBack()
        for sequence in self._state.running:
            kept_back.add(sequence, self._pressure.demand(sequence, len(sequence.pages)))
        return kept_back

    def fits(self, sequence: Sequence) -> bool:
        """Whether there would be pages for it, as far as can be said without trying."""
        cached = self._pool.pages_for(self._state.tracked[sequence].num_cached_tokens)
        return not self._state.running or not self._lacks(sequence, self._pressure.demand(sequence, cached), self.kept_back())

    def waits_for_leases(self, sequence: Sequence) -> bool:
        """Whether it is its tenant's own leases that keep it waiting, as far as can be said without trying."""
        num_cached_tokens = self._state.tracked[sequence].num_cached_tokens
        num_leased = self._holding.num_leased(sequence, num_cached_tokens)
        if not num_leased:
            return False
        demand = self._pressure.demand(sequence, self._pool.pages_for(num_cached_tokens))
        if self._num_kept_back is None:
            self._num_kept_back = self.kept_back().total
        room = self._pool.shared_room(owner_of(sequence.namespace)) - self._num_kept_back
        return demand + num_leased > room and self._holding.must_wait(sequence, num_cached_tokens)

    def begin(self, step: Step) -> AdmissionRound:
        """For one step."""
        leaders = Leaders(max(MIN_SHARED_TOKENS, self._pool.page_size_tokens))
        # Without a cache there is nothing to share through, and nobody leads.
        for sequence in self._state.running if self._cache.enabled else ():
            if sequence.num_uncomputed > 1 + sequence.num_draft:
                leaders.add(sequence, self._state.tracked[sequence].tokens)
        return AdmissionRound(self, step, leaders, self.kept_back())

    def leader_of(self, sequence: Sequence, leaders: Leaders) -> Sequence | None:
        """Whom it should wait for."""
        tracked = self._state.tracked[sequence]
        return leaders.leader_of(sequence, tracked.tokens, tracked.num_cached_tokens, match_limit(sequence))

    def overdue(self, sequence: Sequence, now_s: float) -> Sequence | None:
        """Whose turn the next admission of its tenant is, for being overdue."""
        return self._state.waiting.overdue(self._state.tracked[sequence], now_s)

    def is_newcomer(self, sequence: Sequence) -> bool:
        """Whether it is to leave leased pages alone."""
        return self._holding.num_leased(sequence, self._state.tracked[sequence].num_cached_tokens) > 0

    @property
    def num_free_slots(self) -> int:
        """Sequences that could start."""
        return self._num_slots - len(self._state.running)

    def start(self, step: Step, sequence: Sequence, budget: StepBudget, kept_back: KeptBack) -> int | None:
        """Give a sequence a slot and its first chunk; returns the pages it is expected to take, or None if it must wait.

        With nothing running, room is made for it.
        """
        tracked, alone = self._state.tracked[sequence], not self._state.running
        match = self._cache.match(sequence.namespace, tracked.tokens, match_limit(sequence))
        count = budget.grant(match.num_tokens, sequence.num_tokens - match.num_tokens, priority_rank(sequence))
        if not count:
            return None
        demand = self._pressure.demand(sequence, self._pool.pages_for(match.num_tokens))
        num_leased = self._holding.num_leased(sequence, match.num_tokens)
        takes_leased = num_leased > 0 and self._takes_more(sequence, demand + num_leased, kept_back)
        if takes_leased and self._holding.must_wait(sequence, match.num_tokens):
            kept_back.to_leases.add(owner_of(sequence.namespace))
            return None
        # More seems available than will be when the matched pages are locked: this only spares the attempt.
        if not alone and self._lacks(sequence, demand, kept_back):
            tracked.tenant.is_blocked = True
            return None
        self._pages.attach(sequence, match)
        demand += self._pages.missing(sequence, sequence.num_computed)
        if alone:
            self._pressure.make_room(step, sequence, sequence.num_computed + 1)
        elif self._lacks(sequence, demand, kept_back):
            count = 0
        count = self._pages.fitting(sequence, count)
        tracked.tenant.is_blocked = not count
        if not count:
            self._pages.detach(sequence, tracked.tokens)
            return None
        self._admit(sequence, step.now_s, takes_leased)
        self._holding.admitted(sequence, match.num_tokens, takes_leased)
        self._pressure.plan(step, sequence, count)
        budget.take(sequence.num_computed, count, priority_rank(sequence))
        return demand

    def _lacks(self, sequence: Sequence, demand: int, kept_back: KeptBack) -> bool:
        owner = owner_of(sequence.namespace)
        if self._pages.is_held_back(sequence, kept_back.by_owner.get(owner, 0) + demand):
            kept_back.held.add(owner)
            return True
        return self._takes_more(sequence, demand, kept_back)

    def _takes_more(self, sequence: Sequence, num_pages: int, kept_back: KeptBack) -> bool:
        return kept_back.total + num_pages > self._pool.shared_room(owner_of(sequence.namespace))

    def _admit(self, sequence: Sequence, now_s: float, takes_leased: bool) -> None:
        tracked = self._state.tracked[sequence]
        tracked.is_overdue |= self._state.waiting.queue_of(tracked).admits(
            sequence,
            now_s,
            sequence.num_tokens - sequence.num_computed
            if takes_leased
            else self._pages.lost(sequence, tracked.num_known_tokens, sequence.num_computed),
        )
        if sequence.num_cached_tokens < 0:
            tracked.frontier = sequence.num_computed  # what the cache had is free
            sequence.first_scheduled_s = now_s
            sequence.num_cached_tokens = min(sequence.num_computed, sequence.num_prompt_tokens)
            self._state.counters.num_prompt_tokens += sequence.num_prompt_tokens
            self._state.counters.num_cached_tokens += sequence.num_cached_tokens
        self._state.start(sequence)
        self._pages.fulfil(sequence)

    def leads(self, sequence: Sequence, leaders: Leaders) -> None:
        """It has started, and others may wait for what it goes on to compute."""
        if sequence.num_uncomputed > 1 + sequence.num_draft and self._cache.enabled:
            tracked = self._state.tracked[sequence]
            leaders.add(sequence, tracked.tokens)
            # Its program's other branches that wait for it would start now, but for what they share: that costs none its turn.
            for other in list(islice(tracked.program.waiting, max(0, self.num_free_slots))):
                if self.leader_of(other, leaders) is sequence:
                    self._state.waiting.defer(other, self._state.tracked[other])


class AdmissionRound:
    """The admissions of one step."""

    def __init__(self, admission: Admission, step: Step, leaders: Leaders, kept_back: KeptBack) -> None:
        self._admission = admission
        self._step = step
        self._leaders = leaders
        self._kept_back = kept_back
        self._is_over = False
        self._deferred: set[Sequence] = set()
        """Those for which a running one is computing a prefix."""

    def offer(self, sequence: Sequence, budget: StepBudget) -> Sequence | None:
        """Start it, if it can; returns the running sequence that it waits for instead, if there is one."""
        if self._is_over or self._kept_back.holds(sequence) or self._admission.num_free_slots <= 0:
            return None
        overdue = self._admission.overdue(sequence, self._step.now_s)
        if overdue in self._deferred:
            return None  # nobody of its tenant takes the turn that is an overdue one's
        if overdue is not sequence and self._kept_back.leaves_to_leases(sequence) and self._admission.is_newcomer(sequence):
            return None
        leader = self._admission.leader_of(sequence, self._leaders)
        if leader is not None:
            self._deferred.add(sequence)
            return leader
        demand = self._admission.start(self._step, sequence, budget, self._kept_back)
        if demand is None:
            # The next in order may be smaller, but this one would be passed over for ever; unless it is its own tenant's
            # limit or leases that are in its way, and nobody else's.
            self._is_over = not self._kept_back.holds(sequence) and not self._kept_back.leaves_to_leases(sequence)
        else:
            self._kept_back.add(sequence, demand)
            self._admission.leads(sequence, self._leaders)
        return None
