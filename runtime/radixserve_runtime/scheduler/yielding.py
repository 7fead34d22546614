"""Slots that running sequences give up for those of the waiting that have the better claim. Done before a step is planned.

Three claims are honoured:

- a higher class takes slots, and pages, from the background, unless that would go against the order between tenants;
- a tenant whose counter is behind another's by more than the policy's lead takes slots from it;
- a tenant that is ahead of one that waits by more than twice the lead gets nothing at all until that one has caught up,
  whatever it is that keeps the other back (slots, the prefill that a step takes in, pages).

A preempted sequence's KV stays in the tree, so going on later costs nothing unless its pages are needed. Fairness takes
a slot only from a sequence that has got on since it was admitted, so that every turn brings each forward.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.policy import BACKGROUND_RANK, priority_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.scheduler.accounts import Tenant
    from radixserve_runtime.scheduler.admission import Admission
    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.kv import SequencePages
    from radixserve_runtime.scheduler.policy import Policy
    from radixserve_runtime.scheduler.pressure import Pressure
    from radixserve_runtime.scheduler.selection import Selection
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState, Step


class Yielding:
    """Makes way for waiting sequences."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        selection: Selection,
        pressure: Pressure,
        pages: SequencePages,
        admission: Admission,
        config: SchedulerConfig,
    ) -> None:
        self._state = state
        self._policy = policy
        self._selection = selection
        self._pressure = pressure
        self._pages = pages
        self._fits = admission.fits
        self._waits_for_leases = admission.waits_for_leases
        self._prefill_charge = config.charge.prefill
        self._num_slots = config.num_slots
        self._max_batch_tokens = config.max_batch_tokens

    def over(self, candidates: list[Sequence], leads: float) -> set[Tenant]:
        """Tenants that are ahead of a waiting one by more than so many leads."""
        if math.isinf(self._policy.lead):
            return set()
        limit = self._least(candidates) + leads * self._policy.lead
        return {tenant for tenant in self._tenants([*self._state.running, *candidates]) if tenant.counter > limit}

    def _tenants(self, sequences: list[Sequence]) -> set[Tenant]:
        return {self._state.tracked[sequence].tenant for sequence in sequences}

    def hold(self, step: Step, candidates: list[Sequence]) -> set[Tenant]:
        """Tenants that are far ahead lose their slots, and are not to get any; returns them."""
        held = self.over(candidates, 2.0)
        if held:
            limit = self._least(candidates) + 2.0 * self._policy.lead
            for sequence in reversed(step.running):
                tracked = self._state.tracked[sequence]
                if tracked.has_got_on and tracked.tenant.counter > limit + self._loss(sequence):
                    self._yield(step, sequence)
        return held

    def _least(self, candidates: list[Sequence]) -> float:
        return min((self._selection.claim(one) for one in candidates if self._has_claim(one)), default=math.inf)

    def _has_claim(self, sequence: Sequence) -> bool:
        return not (self._state.tracked[sequence].tenant.is_blocked or self._waits_for_leases(sequence))

    def _loss(self, victim: Sequence) -> float:
        """What its tenant's counter would have been charged for what has to be computed again, if it is preempted now.

        Nothing while pages are plenty, as the tree keeps its KV until it goes on.
        """
        if self._pages.keeps(victim):
            return 0.0
        return self._prefill_charge * victim.num_computed / self._state.tracked[victim].tenant.weight

    def make_way(self, step: Step, candidates: list[Sequence]) -> list[Sequence]:
        """Preempt for the candidates, the most entitled first; returns those that it was done for. Free slots go to the first of them."""
        free = self._num_slots - len(self._state.running)
        num_tokens = self._max_batch_tokens
        favoured: list[Sequence] = []
        for sequence in self._claimants(step, candidates, free):
            tracked = self._state.tracked[sequence]
            if num_tokens <= 0:
                break
            if self._waits_for_leases(sequence):
                continue
            num_tokens -= sequence.num_tokens - tracked.num_cached_tokens
            if free > 0:
                free -= 1
            elif self._take(step, sequence, self._may_take_slot):
                favoured.append(sequence)
            else:
                continue
            while not self._fits(sequence) and self._take(step, sequence, self._may_take_pages):
                free += 1
        return favoured

    def _claimants(self, step: Step, candidates: list[Sequence], free: int) -> list[Sequence]:
        """The candidates in order, if any of them might take something from anybody."""
        victims = [sequence for sequence in step.running if sequence in self._state.running]
        if not victims or not candidates:
            return []
        outranked = self._state.class_rank(victims[-1]) == BACKGROUND_RANK and any(
            priority_rank(sequence) < BACKGROUND_RANK for sequence in candidates
        )
        if not outranked and (free > 0 or not self.over(candidates, 1.0)):
            return []
        return self._selection.in_order(candidates, step.now_s)

    def _take(self, step: Step, sequence: Sequence, may: Callable[[Sequence, Sequence], bool]) -> bool:
        for victim in reversed(step.running):
            if victim in self._state.running and may(sequence, victim):
                self._yield(step, victim)
                return True
        return False

    def _may_take_slot(self, sequence: Sequence, victim: Sequence) -> bool:
        theirs = self._state.tracked[victim]
        behind = theirs.tenant.counter - self._selection.claim(sequence) > self._policy.lead + self._loss(victim)
        return (behind and theirs.has_got_on) or self._outranks(sequence, victim)

    def _may_take_pages(self, sequence: Sequence, victim: Sequence) -> bool:
        # Where its own tenant's limit is in its way, others' pages are no use to it.
        return self._outranks(sequence, victim) and self._pages.may_take_from(sequence, victim, sequence.num_tokens)

    def _outranks(self, sequence: Sequence, victim: Sequence) -> bool:
        """Whether a higher class may take from a background sequence."""
        if self._state.class_rank(victim) != BACKGROUND_RANK or priority_rank(sequence) == BACKGROUND_RANK:
            return False
        ours, theirs = self._state.tracked[sequence].tenant, self._state.tracked[victim].tenant
        return self._selection.rank(ours) <= self._selection.rank(theirs)

    def _yield(self, step: Step, victim: Sequence) -> None:
        self._pressure.preempt(step, victim)
        step.num_yielded += 1
