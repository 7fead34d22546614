"""Who waits, by tenant, and whether ageing keeps its promise."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    """One tenant's sequences that have not started."""

    young: tuple[deque[Sequence], deque[Sequence]] = field(default_factory=lambda: (deque(), deque()))
    """In order of arrival; those of the background, which become overdue later, apart."""
    overdue: dict[Sequence, tuple[int, int]] = field(default_factory=dict["Sequence", tuple[int, int]])
    """With how many older ones there were at most when it became so, and how many admissions there had been."""
    num_admissions: int = 0


class AgeingCheck:
    """Counts what breaks the promise of docs/fairness.md: overdue, with n older overdue ones, it is among the next 4 (n + 1) admissions of its tenant."""

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

    def added(self, sequence: Sequence) -> None:
        """It waits for its first slot."""
        self._line(sequence).young[sequence.priority == "background"].append(sequence)

    def started(self, sequences: list[Sequence], planned_s: float) -> None:
        """They got slots in the step that was planned at this time."""
        for line in {id(line): line for line in map(self._line, sequences)}.values():
            # Background first: it counts as older, which it may be.
            self._age(line, line.young[1], planned_s, 2 * self._ageing_s)
            self._age(line, line.young[0], planned_s, self._ageing_s)
        for sequence in sequences:
            line = self._line(sequence)
            line.num_admissions += 1
            older, before = line.overdue.pop(sequence, (-1, 0))
            if older >= 0:
                self.num_overdue += 1
                self.num_late += line.num_admissions - before > 4 * (older + 1)

    @staticmethod
    def _age(line: _Line, young: deque[Sequence], now_s: float, limit_s: float) -> None:
        """Move on what has become overdue."""
        others = len(line.young[1]) if young is line.young[0] else 0
        while young:
            sequence = young[0]
            if not 0 <= sequence.first_scheduled_s < now_s:
                if sequence.arrival_s + limit_s > now_s:
                    return
                line.overdue[sequence] = (len(line.overdue) + others, line.num_admissions)
            young.popleft()
