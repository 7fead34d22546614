"""The order of one step: running prefills and the waiting in one line, the most entitled first.

Being given work moves a tenant back at once, and each fourth admission is an overdue sequence's, so the line is drawn one by one. A running prefill goes before those of
its tenant and class that wait, whatever their levels: what was begun is finished. Branches of one program follow each
other, behind the one of them that goes first.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.holding import WARM
from radixserve_runtime.scheduler.kv import match_limit
from radixserve_runtime.scheduler.policy import OVERDUE_RANK, OrderKey, priority_rank
from radixserve_runtime.scheduler.sequence import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.scheduler.accounts import Program, Tenant
    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.kv import SequencePages
    from radixserve_runtime.scheduler.policy import Policy
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState

#: Second place of a key, after the class.
_RUNS, _RESUMES, _NEW = -1.0, 0.0, 1.0


class _TenantLine:
    """What one tenant has in a step's line (or all have, where a policy knows no tenants): its own order, but for whoever its next admission is due to."""

    def __init__(self, state: SchedulerState, now_s: float, candidates: Collection[Sequence]) -> None:
        self._state = state
        self._now_s = now_s
        self._candidates = candidates
        self._drawn: set[Sequence] = set()
        self.rest: list[Sequence] = []
        """Those that were not drawn, the first of them last; never empty while the line is in use."""

    def find_first(self) -> Sequence | None:
        """Who is drawn next; None if nobody is left. That changes with every admission: each fourth goes to an overdue sequence."""
        while self.rest and self.rest[-1] in self._drawn:
            self.rest.pop()
        if not self.rest:
            return None
        first = self.rest[-1]
        overdue = self._state.waiting.overdue(self._state.tracked[first], self._now_s)
        return first if overdue is None or overdue in self._drawn or overdue not in self._candidates else overdue

    def draw(self, sequence: Sequence) -> None:
        """Take out the first."""
        self._drawn.add(sequence)


class Selection:
    """Orders sequences by the policy, and by the rules that all policies share."""

    def __init__(
        self, state: SchedulerState, policy: Policy, cache: RadixCache, pages: SequencePages, config: SchedulerConfig
    ) -> None:
        self._state = state
        self._policy = policy
        self._cache = cache
        self._pages = pages
        self._ageing_s = config.ageing_s
        self._prefill_charge = config.charge.prefill

    def rank(self, tenant: Tenant) -> float:
        """Between tenants."""
        return self._policy.rank(tenant.counter, tenant.is_fresh)

    def claim(self, sequence: Sequence) -> float:
        """The counter by which a waiting sequence's tenant is compared with others: its own, and more for what the cache has lost of the sequence."""
        tracked = self._state.tracked[sequence]
        lost = self._policy.switch_cost * self._prefill_charge * tracked.num_lost_tokens
        return tracked.tenant.counter + lost / tracked.tenant.weight

    def _claimed_rank(self, sequence: Sequence) -> float:
        tenant = self._state.tracked[sequence].tenant
        counter = self.claim(sequence) if sequence.status is Status.WAITING else tenant.counter
        return self._policy.rank(counter, tenant.is_fresh)

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
                tracked.num_lost_tokens = self._pages.lost(sequence, tracked.num_known_tokens, match.num_tokens)
                self._state.waiting.recount(sequence, tracked)

    def keys(self, candidates: list[Sequence]) -> dict[Sequence, OrderKey]:
        """Keys of waiting sequences within their tenants."""
        is_scarce = self._is_scarce(candidates)
        by_cached = is_scarce or not self._policy.switch_cost or self._is_short_lived(candidates)
        bases: dict[Sequence, OrderKey] = {}
        firsts: dict[tuple[Program, float], OrderKey] = {}
        numbers: dict[Program, int] = {}
        for sequence in candidates:
            program = self._state.tracked[sequence].program
            base = bases[sequence] = self._base(sequence, is_scarce, by_cached)
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

    def _base(self, sequence: Sequence, is_scarce: bool, by_cached: bool) -> OrderKey:
        tracked = self._state.tracked[sequence]
        resumes = _RESUMES if sequence.num_preemptions or tracked.is_deferred else _NEW
        is_cold = is_scarce and tracked.num_cached_tokens < WARM * sequence.num_tokens
        num_cached_tokens = tracked.num_cached_tokens if by_cached else 0
        head, *rest = self._policy.key(priority_rank(sequence), tracked.program.level, num_cached_tokens, sequence.arrival_s)
        return (head, is_cold, resumes, *rest)

    def _is_scarce(self, candidates: list[Sequence]) -> bool:
        """Whether the cache has lost contexts that are wanted: then what it still has goes first, and few programs are kept alive."""
        tracked = self._state.tracked
        if not self._policy.switch_cost:
            return False
        return self._pages.are_promised or any(tracked[sequence].num_lost_tokens for sequence in candidates)

    def _is_short_lived(self, candidates: list[Sequence]) -> bool:
        """Whether the cache has lost what was used after some of them came: then what they would share may be gone before their turn, and goes first.

        What outlives the wait is there whoever goes first, and then the longest prefix first would only let new programs wait for old ones.
        """
        tracked = self._state.tracked
        return any(self._cache.evicted_tick > tracked[sequence].cache_tick for sequence in candidates)

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
        running, waiting = set(prefills), set(candidates)
        keys = {sequence: self._running_key(sequence, now_s) for sequence in prefills} | self.keys(candidates)
        for sequence in favoured:
            keys[sequence] = (OVERDUE_RANK - 1, *keys[sequence])
        lines: dict[Tenant | None, _TenantLine] = {}
        for sequence in reversed(sorted(keys, key=keys.__getitem__)):
            tenant = self._state.tracked[sequence].tenant
            name = tenant if self._policy.by_tenant else None
            if name not in lines:
                lines[name] = _TenantLine(self._state, now_s, waiting)
            lines[name].rest.append(sequence)

        heap: list[tuple[float, OrderKey, int, Sequence, _TenantLine]] = []

        def enter(number: int, line: _TenantLine) -> None:
            first = line.find_first()
            if first is not None:
                between = self._between(first, first in running, line.rest[-1] in favoured)
                heapq.heappush(heap, (self._claimed_rank(first), between, number, first, line))

        for number, line in enumerate(lines.values()):
            enter(number, line)
        while heap:
            rank, key, number, sequence, line = heapq.heappop(heap)
            now = self._claimed_rank(sequence)
            if now > rank:
                heapq.heappush(heap, (now, key, number, sequence, line))
                continue
            line.draw(sequence)
            if sequence.status is Status.RUNNING or sequence not in running:  # or it was preempted meanwhile
                yield sequence
            enter(number, line)

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
