"""Who waits, by tenant, and whether ageing keeps its promise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from .tenants import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence


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
    overdue: dict[Sequence, tuple[int, int]] = field(default_factory=dict["Sequence", tuple[int, int]])
    """How many others were overdue when it became so, and how many admissions there had been."""
    num_admissions: int = 0


class AgeingCheck:
    """Counts what breaks the promise of docs/fairness.md: when n others are overdue already, it is among the next 4 (n + 1) admissions of its tenant."""

    def __init__(self, ageing_s: float, by_tenant: bool) -> None:
        self._ageing_s = ageing_s
        self._by_tenant = by_tenant
        self._lines: dict[str, _Line] = {}
        self.num_overdue = 0
        """Sequences that started overdue."""
        self.num_late = 0
        """Of these, how many came later than was promised."""

    def _line(self, sequence: Sequence) -> _Line:
        return self._lines.setdefault(sequence.tenant if self._by_tenant else "", _Line())

    def added(self, sequence: Sequence, now_s: float) -> None:
        """It waits for a slot, for the first time or because it was preempted."""
        rank = CLASSES.index(sequence.priority)
        self._line(sequence).young[rank][sequence] = now_s + self._ageing_s * max(1, rank)

    def stepped(self, preempted: Iterable[Sequence], started: Iterable[Sequence], planned_s: float) -> None:
        """Some lost their slots and others got one in the step that was planned at this time, both in order."""
        for sequence in preempted:
            self.added(sequence, planned_s)
        for sequence in started:
            line = self._line(sequence)
            self._age(line, planned_s)
            line.num_admissions += 1
            for young in line.young:
                young.pop(sequence, None)
            older, before = line.overdue.pop(sequence, (-1, 0))
            if older >= 0:
                self.num_overdue += 1
                self.num_late += line.num_admissions - before > 4 * (older + 1)

    @staticmethod
    def _age(line: _Line, now_s: float) -> None:
        """Move on what has become overdue."""
        while True:
            dues = [(due_s, sequence, young) for young in line.young for sequence, due_s in islice(young.items(), 1)]
            due_s, sequence, young = min(dues, key=itemgetter(0), default=(math.inf, None, None))
            if sequence is None or young is None or due_s > now_s:
                return
            line.overdue[sequence] = (len(line.overdue), line.num_admissions)
            del young[sequence]
