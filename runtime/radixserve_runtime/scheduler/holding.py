"""Newcomers wait while what they would need is promised to programs of their own tenant that are coming back.

A lease is a promise to come back. Let in meanwhile, a newcomer would break it, pause in its turn, and find its own context gone:
where contexts don't all fit, programs are to be kept alive few at a time and to end, or all of them compute all of theirs again
at every turn. So a newcomer of a tenant leaves that tenant's leased pages alone and waits, and what is warm goes before it.

Only for so long as the promises are worth it. The tenant's patience is

- while anything runs: the ageing time since its last newcomer was admitted, and not less than four times what the prefill of this
  one takes, so that no more than a quarter of the work is what breaking leases costs;
- while nothing runs: until nothing ran for three quarters of what that prefill takes within about one of its programs' usual pauses (patience.py).
  To wait costs time in which the newcomer, who has to be computed once, could be. To break a lease costs computing a context again, and one more
  program in flight costs that once in a pause, as one of them finds its own gone each time. So short pauses are waited for, and long ones filled.
  And for two such pauses on end at most: then nobody is coming.

It is halved when it was in vain, and whole again when somebody has come back: leases that nobody comes back to hold up the first
few. Newcomers that are overdue wait as well, and go before the others; the interactive class doesn't. Who waits so has no claim on others' slots. Other tenants' leases hold
nobody back: what a tenant is kept from, it has promised itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import owner_of
from radixserve_runtime.scheduler.policy import priority_rank
from radixserve_runtime.scheduler.waiting import OVERDUE_EVERY

if TYPE_CHECKING:
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.scheduler.accounts import Tenant
    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.cost import CostModel
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState

#: Part of what its program had computed (or, without any, of its prompt) that a sequence finds in the cache if it is warm.
WARM = 0.5

#: Part of what a newcomer's prefill takes for which nothing may run for the sake of leases, within a pause.
_IDLE_PART = 0.75

#: Usual pauses for which nothing may run on end.
_IDLE_PAUSES = 2.0

#: By so many times what contexts grow with a sequence those at work are expected to grow yet, and how fast that is learned.
_GROWTHS, _RATE = 2.0, 0.1


class Holding:
    """Says how many leased pages a waiting sequence is to leave alone."""

    def __init__(self, state: SchedulerState, pool: PagePool, cost: CostModel, config: SchedulerConfig, is_on: bool) -> None:
        self._state = state
        self._pool = pool
        self._cost = cost
        self._ageing_s = config.ageing_s
        self._is_on = is_on
        self._now_s = 0.0
        self._is_idle = False
        """Whether the last step was empty."""
        self._idle_since_s = 0.0
        """When the last step that wasn't empty was over."""
        self._held: set[Tenant] = set()
        """Tenants that held newcomers back in the last step."""
        self._until_s = math.inf
        """When the patience of the first of them ends, if nothing runs until then."""

    def begin(self, now_s: float) -> None:
        """A step is planned."""
        if self._is_idle:
            for tenant in self._held:
                tenant.patience.idled(self._now_s, min(now_s, self._until_s))
        else:
            self._idle_since_s = now_s
        self._now_s = now_s
        self._until_s = math.inf
        self._held.clear()

    def end(self, has_chunks: bool) -> None:
        """It is planned."""
        self._is_idle = not has_chunks

    @property
    def deadline_s(self) -> float | None:
        """When somebody who was held back may start though nothing else happens; None: nobody was."""
        return self._until_s if self._until_s < math.inf else None

    def num_leased(self, sequence: Sequence, num_cached_tokens: int) -> int:
        """Pages that a waiting sequence is to leave alone if it can: its tenant's leased ones, if it is a newcomer, and what those at work are expected to grow by."""
        account = self._pool.accounts.get(owner_of(sequence.namespace))
        if not (account.num_leased and self._is_on and self._is_newcomer(sequence, num_cached_tokens)):
            return 0
        tenant = self._state.tracked[sequence].tenant
        num_at_work = account.num_leased_paths + tenant.num_running
        return account.num_leased + num_at_work * self._pool.pages_for(int(_GROWTHS * tenant.growth_tokens))

    def ended(self, sequence: Sequence) -> None:
        """It had its last token: by what it added to its program's context others are expected to add."""
        tracked = self._state.tracked[sequence]
        tracked.program.ended_s = self._now_s
        if tracked.num_known_tokens:
            growth = max(0, sequence.num_computed - tracked.num_known_tokens)
            tracked.tenant.growth_tokens += _RATE * (growth - tracked.tenant.growth_tokens)

    def came_back(self, sequence: Sequence, now_s: float) -> None:
        """It was added, and goes on with what its program has computed and has under a lease."""
        tracked = self._state.tracked[sequence]
        if tracked.program.ended_s is not None:
            tracked.tenant.patience.came_back(now_s - tracked.program.ended_s)

    def must_wait(self, sequence: Sequence, num_cached_tokens: int) -> bool:
        """Whether a newcomer that can't do without leased pages is to wait."""
        tracked = self._state.tracked[sequence]
        until_s = self._patient_until_s(sequence, num_cached_tokens)
        if until_s <= self._now_s:
            return False
        self._until_s = min(self._until_s, until_s)
        self._held.add(tracked.tenant)
        return True

    def _patient_until_s(self, sequence: Sequence, num_cached_tokens: int) -> float:
        tracked = self._state.tracked[sequence]
        tenant, count = tracked.tenant, sequence.num_tokens - num_cached_tokens
        prefill_s = self._cost.prefill_cost(num_cached_tokens, count)
        patience = tenant.patience
        until_s = max(patience.newcomer_s, tracked.since_s) + patience.part * max(self._ageing_s, OVERDUE_EVERY * prefill_s)
        if self._state.running:
            return until_s
        until_s = min(until_s, self._idle_since_s + _IDLE_PAUSES * patience.pause_s)
        return min(until_s, self._now_s + patience.idle_left_s(self._now_s, patience.part * _IDLE_PART * prefill_s))

    def admitted(self, sequence: Sequence, num_cached_tokens: int, took_leased: bool) -> None:
        """It has a slot; `took_leased`: though it can't do without leased pages that it was to leave alone."""
        patience = self._state.tracked[sequence].tenant.patience
        if self._is_newcomer(sequence, num_cached_tokens):
            patience.admitted(self._now_s, in_vain=took_leased)
        else:
            patience.renew()

    def _is_newcomer(self, sequence: Sequence, num_cached_tokens: int) -> bool:
        known = self._state.tracked[sequence].num_known_tokens or sequence.num_tokens
        return not sequence.num_preemptions and priority_rank(sequence) > 0 and num_cached_tokens < WARM * known
