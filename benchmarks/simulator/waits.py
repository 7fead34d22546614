"""Who waits, by tenant, and whether ageing keeps its promise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from .tenants import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve_runtime.scheduler.plan import Chunk, StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence

#: Of so many admissions of a tenant that has overdue sequences one is for these.
EVERY = 4


class WaitingTable:
    """Sequences that have no slot, by tenant."""

    def __init__(self, tenants: dict[str, int]) -> None:
        self._tenants = tenants
        self._waiting: list[set[Sequence]] = [set() for _ in tenants]

    def added(self, sequence: Sequence) -> int | None:
        """It waits. Returns its tenant if this is the tenant's first that waits."""
        tenant = self._tenants[sequence.tenant]
        self._waiting[tenant].add(sequence)
        return tenant if len(self._waiting[tenant]) == 1 else None

    def stepped(self, plan: StepPlan) -> tuple[list[int], list[int], list[Sequence]]:
        """A step: tenants that now have something waiting, those that have nothing any more, and the sequences that got a slot."""
        began = [tenant for sequence in plan.preempted if (tenant := self.added(sequence)) is not None]
        started = [
            chunk.sequence for chunk in plan.chunks if chunk.sequence in self._waiting[self._tenants[chunk.sequence.tenant]]
        ]
        ended: list[int] = []
        for sequence in started:
            tenant = self._tenants[sequence.tenant]
            self._waiting[tenant].remove(sequence)
            if not self._waiting[tenant]:
                ended.append(tenant)
        return began, ended, started


@dataclass(slots=True, eq=False)
class _Line:
    """One tenant's sequences that wait."""

    young: tuple[dict[Sequence, float], ...] = field(default_factory=lambda: ({}, {}, {}))
    """By class, when they become overdue, in that order."""
    overdue: dict[Sequence, None] = field(default_factory=dict["Sequence", None])
    """In the order in which they became so."""
    num_passed: int = EVERY - 1
    """Admissions of others since the last one for being overdue."""
    num_given_tokens: int = 0
    paid_at: int = 0
    """Tokens by which the last overdue admission is paid for."""


class AgeingCheck:
    """Counts what breaks the promise of docs/fairness.md: whose turn it is, for having been overdue for longest, is passed over by no other of its tenant.

    It is such a one's turn when three others have been admitted since the last; and, once the cache has evicted anything, not before the tenant
    was given four times what each of those before it had to compute to begin.
    """

    def __init__(self, ageing_s: float, by_tenant: bool, num_evicted: Callable[[], int] = lambda: 0) -> None:
        self._ageing_s = ageing_s
        self._by_tenant = by_tenant
        self._num_evicted = num_evicted
        self._lines: dict[str, _Line] = {}
        self.num_overdue = 0
        """Sequences that started overdue."""
        self.num_late = 0
        """How often one was passed over against the promise."""

    def _line(self, sequence: Sequence) -> _Line:
        return self._lines.setdefault(sequence.tenant if self._by_tenant else "", _Line())

    def added(self, sequence: Sequence, now_s: float) -> None:
        """It waits for a slot, for the first time or because it was preempted."""
        rank = CLASSES.index(sequence.priority)
        self._line(sequence).young[rank][sequence] = now_s + self._ageing_s * max(1, rank)

    def stepped(self, plan: StepPlan, started: Iterable[Sequence], planned_s: float) -> None:
        """A step that was planned at this time: some of its sequences got their slots in it, in this order."""
        for sequence in plan.preempted:
            self.added(sequence, planned_s)
        new = set(started)
        for chunk in plan.chunks:
            line = self._line(chunk.sequence)
            if chunk.sequence in new:
                self._age(line, planned_s)
                self._admitted(line, chunk)
            line.num_given_tokens += chunk.count

    def _admitted(self, line: _Line, chunk: Chunk) -> None:
        sequence = chunk.sequence
        for young in line.young:
            young.pop(sequence, None)
        first = next(iter(line.overdue), None)
        if sequence in line.overdue:
            self.num_overdue += 1
            del line.overdue[sequence]
        if first is sequence:
            line.num_passed = 0
            num_uncached_tokens = sequence.num_tokens - chunk.start if self._num_evicted() else 0
            line.paid_at = max(line.paid_at, line.num_given_tokens + EVERY * num_uncached_tokens)
        elif first is not None:
            self.num_late += line.num_passed >= EVERY - 1 and line.num_given_tokens >= line.paid_at
            line.num_passed += 1

    @staticmethod
    def _age(line: _Line, now_s: float) -> None:
        """Move on what has become overdue."""
        while True:
            dues = [(due_s, sequence, young) for young in line.young for sequence, due_s in islice(young.items(), 1)]
            due_s, sequence, young = min(dues, key=itemgetter(0), default=(math.inf, None, None))
            if sequence is None or young is None or due_s > now_s:
                return
            line.overdue[sequence] = None
            del young[sequence]
