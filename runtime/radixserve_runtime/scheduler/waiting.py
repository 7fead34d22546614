"""The waiting sequences: a queue for each tenant, with lanes, so that the head of the order is found without looking at all of them.

A lane is a class and a level of attained service; what was preempted has a lane of its own at the front of its class.
Tenants that wait are in a heap by their counters. A counter only grows, so an entry of the heap is a lower bound, and
is put right when it comes to the top: being charged costs nothing here.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.policy import BACKGROUND_RANK, priority_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from radixserve_runtime.scheduler.accounts import Accounts, Program, Tenant
    from radixserve_runtime.scheduler.policy import Policy
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import Tracked

#: Of so many admissions of a tenant that has overdue sequences one goes to the oldest of them.
OVERDUE_EVERY = 4

#: Level of the lane for what was preempted.
_RESUMES = -1

#: Most tenants that are looked at in one step: half of them for being served least, half for being served now.
_MAX_TENANTS = 32


class TenantQueue:
    """The waiting sequences of one tenant, or of all if the policy knows no tenants."""

    def __init__(self, tenant: Tenant | None, accounts: Accounts, ageing_s: float) -> None:
        self.tenant = tenant
        self._accounts = accounts
        self._after_s = tuple(ageing_s * max(1, rank) for rank in range(BACKGROUND_RANK + 1))
        self._lanes: dict[tuple[int, int], OrderedDict[Sequence, Tracked]] = {}
        self._ages: tuple[OrderedDict[Sequence, Tracked], ...] = tuple(
            OrderedDict["Sequence", "Tracked"]() for _ in range(BACKGROUND_RANK + 1)
        )
        self._num_passed = OVERDUE_EVERY - 1
        self._paid_at = 0
        """Tokens that the tenant will have been given by when the last overdue admission is paid for."""

    @property
    def counter(self) -> float:
        """The tenant's."""
        return self.tenant.counter if self.tenant is not None else 0.0

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[Sequence]:
        """By class and level, each by arrival."""
        return chain.from_iterable(self._lanes[lane] for lane in sorted(self._lanes))

    def push(self, sequence: Sequence, tracked: Tracked, level: int) -> None:
        """To the back of its lane; a preempted one to the front of its class."""
        rank, resumes = priority_rank(sequence), sequence.num_preemptions > 0
        tracked.lane = (rank, _RESUMES if resumes else level)
        self._lanes.setdefault(tracked.lane, OrderedDict())[sequence] = tracked
        self._ages[rank][sequence] = tracked

    def remove(self, sequence: Sequence, tracked: Tracked) -> None:
        """Take it out. Raises KeyError if it isn't here."""
        del self._ages[priority_rank(sequence)][sequence]
        self._leave(sequence, tracked)

    def _leave(self, sequence: Sequence, tracked: Tracked) -> None:
        lane = self._lanes[tracked.lane]
        del lane[sequence]
        if not lane:
            del self._lanes[tracked.lane]

    def relevel(self, sequence: Sequence, level: int) -> None:
        """Its program has attained another level."""
        rank = priority_rank(sequence)
        tracked = self._ages[rank][sequence]
        if tracked.lane[1] not in (_RESUMES, level):
            self._leave(sequence, tracked)
            tracked.lane = (rank, level)
            self._lanes.setdefault(tracked.lane, OrderedDict())[sequence] = tracked

    def advance(self, sequence: Sequence, tracked: Tracked) -> None:
        """To the front of its class, behind those that are there."""
        if tracked.lane[1] != _RESUMES:
            self._leave(sequence, tracked)
            tracked.lane = (priority_rank(sequence), _RESUMES)
            self._lanes.setdefault(tracked.lane, OrderedDict())[sequence] = tracked

    def overdue(self, now_s: float) -> Sequence | None:
        """Whoever has been overdue for longest, if the tenant's next admission is for such a one."""
        if self._num_passed < OVERDUE_EVERY - 1 or self._num_given_tokens < self._paid_at:
            return None
        return self._first_overdue(now_s)

    def _first_overdue(self, now_s: float) -> Sequence | None:
        first: Sequence | None = None
        first_s = now_s
        for ages, after_s in zip(self._ages, self._after_s, strict=True):
            if ages:
                sequence, tracked = next(iter(ages.items()))
                due_s = tracked.since_s + after_s
                if due_s < first_s or (due_s == first_s and first is None):
                    first, first_s = sequence, due_s
        return first

    def all_overdue(self, now_s: float, count: int) -> Iterable[Sequence]:
        """The first `count` of those that have waited for the ageing time (background: twice that), in the order in which they became overdue."""
        if self._first_overdue(now_s) is None:
            return ()
        dues = (
            [(tracked.since_s + after_s, rank, sequence) for sequence, tracked in islice(ages.items(), count)]
            for rank, (ages, after_s) in enumerate(zip(self._ages, self._after_s, strict=True))
        )
        merged = sorted(chain.from_iterable(dues), key=itemgetter(0, 1))
        return [sequence for due_s, _, sequence in merged[:count] if due_s <= now_s]

    @property
    def _num_given_tokens(self) -> int:
        return (self.tenant or self._accounts).num_computed_tokens

    def admits(self, sequence: Sequence, now_s: float, num_lost_tokens: int) -> bool:
        """It is about to be admitted. Counts how often overdue sequences are passed over; returns whether it goes before a higher class for being overdue.

        `num_lost_tokens` of it were computed before and are computed again: so that ageing takes no more than its part of the tenant's work,
        the next overdue one waits until that is so.
        """
        oldest = self._first_overdue(now_s)
        if oldest is not sequence:
            self._num_passed += oldest is not None
            return False
        self._num_passed = 0
        self._paid_at = max(self._paid_at, self._num_given_tokens + OVERDUE_EVERY * num_lost_tokens)
        return any(self._ages[: priority_rank(sequence)])

    @property
    def oldest_s(self) -> float:
        """Since when the first has been waiting."""
        return min(next(iter(ages.values())).since_s for ages in self._ages if ages)


class WaitingQueue:
    """All that wait. Adding, removing and looking at the first few cost the logarithm of the number of tenants that wait."""

    def __init__(self, policy: Policy, accounts: Accounts, ageing_s: float) -> None:
        self._policy = policy
        self._accounts = accounts
        self._ageing_s = ageing_s
        self._queues: dict[Tenant | None, TenantQueue] = {}
        self._heap: list[tuple[float, int, TenantQueue]] = []
        self._tick = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def _name(self, tracked: Tracked) -> Tenant | None:
        return tracked.tenant if self._policy.by_tenant else None

    def queue_of(self, tracked: Tracked) -> TenantQueue:
        """The queue that a waiting sequence is in."""
        return self._queues[self._name(tracked)]

    def overdue(self, tracked: Tracked, now_s: float) -> Sequence | None:
        """Whoever of a tenant's waiting sequences its next admission is for, as it has been overdue for longest."""
        queue = self._queues.get(self._name(tracked))
        return queue.overdue(now_s) if queue is not None else None

    def push(self, sequence: Sequence, tracked: Tracked) -> None:
        """It waits: at the end, or in front of its class if it was preempted."""
        name = self._name(tracked)
        queue = self._queues.get(name)
        if not tracked.tenant.num_waiting and self._policy.by_tenant:
            self._accounts.lift(tracked.tenant, self.least_counter)
        if queue is None:
            queue = TenantQueue(name, self._accounts, self._ageing_s)
            self._list(queue)
            self._queues[name] = queue
        queue.push(sequence, tracked, tracked.program.level if self._policy.by_level else 0)
        tracked.program.waiting[sequence] = None
        tracked.tenant.num_waiting += 1
        self._size += 1
        self.recount(sequence, tracked)

    def recount(self, sequence: Sequence, tracked: Tracked) -> None:
        """What the cache has of it was looked up: correct its tenant's number of uncached tokens."""
        uncached = sequence.num_tokens - tracked.num_cached_tokens
        tracked.tenant.num_waiting_uncached_tokens += uncached - tracked.num_counted_tokens
        tracked.num_counted_tokens = uncached

    def remove(self, sequence: Sequence, tracked: Tracked) -> None:
        """Take it out. Raises KeyError if it isn't here."""
        name = self._name(tracked)
        queue = self._queues[name]
        queue.remove(sequence, tracked)
        if not queue:
            del self._queues[name]  # its entry in the heap is dropped when it comes up
        del tracked.program.waiting[sequence]
        tracked.tenant.num_waiting -= 1
        tracked.tenant.num_waiting_uncached_tokens -= tracked.num_counted_tokens
        tracked.num_counted_tokens = 0
        self._size -= 1
        if not tracked.tenant.num_waiting:
            self._accounts.served(tracked.tenant)

    def defer(self, sequence: Sequence, tracked: Tracked) -> None:
        """It could start and waits for a prefix that another computes: then its turn has come, whatever its program attains meanwhile."""
        tracked.is_deferred = True
        self.queue_of(tracked).advance(sequence, tracked)

    def relevel(self, tenant: Tenant, program: Program) -> None:
        """A program has attained another level: those of it that wait change lanes."""
        if program.waiting and self._policy.by_level:
            queue = self._queues[tenant]
            for sequence in program.waiting:
                queue.relevel(sequence, program.level)

    # ---- the head of the order -------------------------------------------------------------------------------

    def _list(self, queue: TenantQueue) -> None:
        if len(self._heap) > 2 * len(self._queues) + _MAX_TENANTS:
            self._heap = [entry for entry in self._heap if self._queues.get(entry[2].tenant) is entry[2]]
            heapq.heapify(self._heap)
        self._tick += 1
        heapq.heappush(self._heap, (queue.counter, self._tick, queue))

    def _least_served(self, count: int) -> list[TenantQueue]:
        """The queues of the `count` tenants with the least counters, in order; of equals whoever has waited longest."""
        taken: list[tuple[float, int, TenantQueue]] = []
        while self._heap and len(taken) < count:
            entry = heapq.heappop(self._heap)
            counter, tick, queue = entry
            if self._queues.get(queue.tenant) is not queue:
                continue
            if queue.counter > counter:
                heapq.heappush(self._heap, (queue.counter, tick, queue))
            else:
                taken.append(entry)
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return [queue for _, _, queue in taken]

    @property
    def least_counter(self) -> float | None:
        """The least counter of the tenants that wait; None: nobody waits."""
        first = self._least_served(1)
        return first[0].counter if first else None

    def heads(self, size: int, now_s: float, served: Mapping[Tenant, None]) -> list[Sequence]:
        """About the first `size` by the policy's order, leaving cached prefixes aside, and whoever is overdue.

        Of many tenants only those served least, and those of `served` (who run now, and have most in the cache), are
        looked at. `size` is shared out among them, at least one each; what one leaves the others have.
        """
        queues = dict.fromkeys(self._least_served(_MAX_TENANTS // 2 if served else _MAX_TENANTS))
        if self._policy.by_tenant:
            running = [self._queues[tenant] for tenant in served if tenant in self._queues]
            queues.update(dict.fromkeys(sorted(running, key=lambda queue: queue.counter)[: _MAX_TENANTS // 2]))
        if not queues:
            return []
        found: dict[Sequence, None] = {}
        share = max(1, size // len(queues))
        rests = [iter(queue) for queue in queues]
        for queue, rest in zip(queues, rests, strict=True):
            overdue = queue.overdue(now_s)
            if overdue is not None:
                found[overdue] = None
            found.update(dict.fromkeys(islice(rest, share)))
        for queue, rest in zip(queues, rests, strict=True):
            more = list(islice(rest, max(0, size - len(found))))
            found.update(dict.fromkeys(more))
            # Were all of them admitted in one step, each fourth would have to be an overdue one.
            num_overdue = 1 + (share + len(more)) // (OVERDUE_EVERY - 1)
            found.update(dict.fromkeys(queue.all_overdue(now_s, num_overdue)))
        return list(found)

    @property
    def oldest_s(self) -> float | None:
        """Since when the first has been waiting, or None. Looks at every tenant: for the batch modes."""
        return min((queue.oldest_s for queue in self._queues.values()), default=None)
