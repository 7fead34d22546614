"""Who waits, by tenant, and whether anybody is passed over for longer than the ageing limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence


class WaitingTable:
    """Sequences that have no slot, by tenant, in order of arrival (preempted ones at the end)."""

    def __init__(self, tenants: dict[str, int], ageing_s: float) -> None:
        self._tenants = tenants
        self._ageing_s = ageing_s
        self._waiting: list[dict[Sequence, None]] = [{} for _ in tenants]
        self.num_passed_over = 0
        """Starts of a sequence that had waited less than the limit while one of its tenant, of its class or a higher one, had waited longer."""

    def added(self, sequence: Sequence) -> int | None:
        """It waits. Returns its tenant if this is the tenant's first that waits."""
        tenant = self._tenants[sequence.tenant]
        self._waiting[tenant][sequence] = None
        return tenant if len(self._waiting[tenant]) == 1 else None

    def stepped(self, plan: StepPlan, started_s: float) -> tuple[list[int], list[int]]:
        """A step that was planned at `started_s`: tenants that now have something waiting, and those that have nothing any more."""
        began, ended = [tenant for sequence in plan.preempted if (tenant := self.added(sequence)) is not None], list[int]()
        started = [
            chunk.sequence for chunk in plan.chunks if chunk.sequence in self._waiting[self._tenants[chunk.sequence.tenant]]
        ]
        for sequence in started:
            tenant = self._tenants[sequence.tenant]
            del self._waiting[tenant][sequence]
            if not self._waiting[tenant]:
                ended.append(tenant)
        for sequence in started:
            self.num_passed_over += self._passes_over(sequence, started_s)
        return began, ended

    def _passes_over(self, sequence: Sequence, started_s: float) -> bool:
        oldest = next(iter(self._waiting[self._tenants[sequence.tenant]]), None)
        limit_s = started_s - self._ageing_s
        return oldest is not None and oldest.arrival_s < limit_s <= sequence.arrival_s and oldest.priority == sequence.priority
