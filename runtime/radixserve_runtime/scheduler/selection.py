"""The order of one step: running prefills and the waiting in one line, the most entitled first.

Being given work moves a tenant back at once, so the line is drawn one by one. A running prefill goes before those of
its tenant and class that wait, whatever their levels: what was begun is finished. Branches of one program follow each
other, behind the one of them that goes first.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.kv import match_limit
from radixserve_runtime.scheduler.policy import OVERDUE_RANK, OrderKey, priority_rank
from radixserve_runtime.scheduler.sequence import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.scheduler.accounts import Program, Tenant
    from radixserve_runtime.scheduler.policy import Policy
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState

#: Second place of a key, after the class.
_RUNS, _RESUMES, _NEW = -1.0, 0.0, 1.0


class Selection:
    """Orders sequences by the policy, and by the rules that all policies share."""

    def __init__(self, state: SchedulerState, policy: Policy, cache: RadixCache, ageing_s: float) -> None:
        self._state = state
        self._policy = policy
        self._cache = cache
        self._ageing_s = ageing_s

    def rank(self, tenant: Tenant) -> float:
        """Between tenants."""
        return self._policy.rank(tenant.counter, tenant.is_fresh)

    def entitlement(self, sequence: Sequence) -> OrderKey:
        """Order among the running: the last is preempted first. Background goes first, then whoever is most over its share, then the lower class, then the latest."""
        rank = self._state.class_rank(sequence)
        over = self._policy.rank(self._state.tracked[sequence].tenant.counter, False)
        return (max(1, rank), over, rank, sequence.arrival_s)

    def look_up(self, candidates: Iterable[Sequence]) -> None:
        """Match candidates with the cache, if the tree has grown since they were last."""
        version = self._cache.version
        for sequence in candidates:
            tracked = self._state.tracked[sequence]
            if tracked.cache_version != version:
                match = self._cache.match(sequence.namespace, tracked.tokens, match_limit(sequence))
                tracked.num_cached_tokens, tracked.cache_version = match.num_tokens, version
                self._state.waiting.recount(sequence, tracked)

    def keys(self, candidates: list[Sequence], now_s: float) -> dict[Sequence, OrderKey]:
        """Keys of waiting sequences within their tenants."""
        bases: dict[Sequence, OrderKey] = {}
        firsts: dict[tuple[Program, float], OrderKey] = {}
        numbers: dict[Program, int] = {}
        for sequence in candidates:
            program = self._state.tracked[sequence].program
            base = bases[sequence] = self._base(sequence, now_s)
            group = (program, base[0])
            firsts[group] = min(firsts.get(group, base), base)
            numbers.setdefault(program, len(numbers))
        if not self._policy.by_level:
            return bases
        return {
            sequence: (*firsts[program, base[0]], numbers[program], *base[1:])
            for sequence, base in bases.items()
            for program in (self._state.tracked[sequence].program,)
        }

    def _base(self, sequence: Sequence, now_s: float) -> OrderKey:
        tracked = self._state.tracked[sequence]
        rank = priority_rank(sequence)
        if self._state.waiting.queue_of(tracked).overdue(now_s) is sequence:
            rank = OVERDUE_RANK
        resumes = _RESUMES if sequence.num_preemptions else _NEW
        head, *rest = self._policy.key(rank, tracked.program.level, tracked.num_cached_tokens, sequence.arrival_s)
        return (head, resumes, *rest)

    def in_order(self, candidates: list[Sequence], now_s: float) -> list[Sequence]:
        """Waiting sequences, as things stand."""
        return list(self.line([], candidates, (), now_s))

    def line(
        self, prefills: list[Sequence], candidates: list[Sequence], favoured: Collection[Sequence], now_s: float
    ) -> Iterator[Sequence]:
        """Draw one after the other; by when one is drawn those before it have been charged. For `favoured` candidates a slot was taken from others.

        Each tenant's are in their own order, and those that come first in tenants of the same rank are compared by class
        and cached prefix: that it is overdue, or its program's level, gives a sequence no precedence over other tenants'.
        """
        running = set(prefills)
        keys = {sequence: self._running_key(sequence, now_s) for sequence in prefills} | self.keys(candidates, now_s)
        for sequence in favoured:
            keys[sequence] = (OVERDUE_RANK - 1, *keys[sequence])
        queues: dict[Tenant | None, list[Sequence]] = {}
        for sequence in reversed(sorted(keys, key=keys.__getitem__)):
            tenant = self._state.tracked[sequence].tenant
            queues.setdefault(tenant if self._policy.by_tenant else None, []).append(sequence)

        def entry(number: int, queue: list[Sequence]) -> tuple[float, OrderKey, int, list[Sequence]]:
            first = queue[-1]
            between = self._between(first, first in running, first in favoured)
            return self.rank(self._state.tracked[first].tenant), between, number, queue

        heap = [entry(number, queue) for number, queue in enumerate(queues.values())]
        heapq.heapify(heap)
        while heap:
            rank, key, number, queue = heapq.heappop(heap)
            now = self.rank(self._state.tracked[queue[-1]].tenant)
            if now > rank:
                heapq.heappush(heap, (now, key, number, queue))
                continue
            sequence = queue.pop()
            if sequence.status is Status.RUNNING or sequence not in running:  # or it was preempted meanwhile
                yield sequence
            if queue:
                heapq.heappush(heap, entry(number, queue))

    def _between(self, sequence: Sequence, runs: bool, is_favoured: bool) -> OrderKey:
        """Order among tenants of one rank."""
        num_cached_tokens = self._state.tracked[sequence].num_cached_tokens
        head, *rest = self._policy.key(priority_rank(sequence), 0, num_cached_tokens, sequence.arrival_s)
        return (not is_favoured, head, not runs, *rest)

    def _running_key(self, sequence: Sequence, now_s: float) -> OrderKey:
        """A prefill that others have kept from any progress for the ageing time goes first once."""
        rank = priority_rank(sequence)
        if now_s - self._state.tracked[sequence].last_chunk_s >= self._ageing_s:
            rank = OVERDUE_RANK
        return (rank, _RUNS, sequence.arrival_s)
