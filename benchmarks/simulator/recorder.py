"""Watches a simulation and keeps what the report needs: sums and samples, never requests."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from .gap import GapTracker
from .quantiles import Samples
from .report import Result, TenantResult
from .series import Series
from .waits import AgeingCheck, WaitingTable

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.plan import StepPlan

    from .charges import Charges
    from .loop import Call, Progress
    from .quantiles import Summary
    from .tenants import Member
    from .workload import Program


class Recorder:
    """The watcher of one run."""

    def __init__(self, members: list[Member], charges: Charges, ageing: AgeingCheck) -> None:
        self._members = members
        self._part = {member.name: member.part for member in members}
        self._index = {member.name: index for index, member in enumerate(members)}
        self._charges = charges
        self._waits = WaitingTable(self._index)
        self._ageing = ageing
        self.gap = GapTracker([member.weight for member in members])
        self.service = Series(len(members))
        """Charge by tenant and stretch of time."""
        self.charge = [0.0] * len(members)
        self.calls = [0] * len(members)
        """Requests that ended, by tenant."""
        self.ttft_s: dict[tuple[str, str], Samples] = defaultdict(Samples)
        """By (class, part of the tenants)."""
        self.queued_s = Samples()
        """From arrival to the first chunk."""
        self.completion_s = Samples()
        self.engine_s = Samples()
        """A program's completion time without its pauses."""
        self.num_programs = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_output_tokens = 0
        self.num_computed_tokens = 0
        self.num_ideal_tokens = 0
        self.num_calls = 0
        self.num_steps = 0
        self.busy_s = 0.0
        self.largest_step_charge = 0.0

    def program_began(self, program: Program, now_s: float) -> None:
        """Counted when it ends."""

    def program_ended(self, progress: Progress, now_s: float) -> None:
        """Its completion time; the flood's requests are no programs."""
        if progress.program.is_background:
            return
        self.num_programs += 1
        taken_s = now_s - progress.program.start_s
        self.completion_s.add(taken_s)
        self.engine_s.add(max(0.0, taken_s - progress.thinking_s))

    def call_added(self, call: Call, now_s: float) -> None:
        """Its tenant has something waiting."""
        self._ageing.added(call.sequence, now_s)
        tenant = self._waits.added(call.sequence)
        if tenant is not None:
            self.gap.set_backlogged((tenant,), True)

    def call_ended(self, call: Call, now_s: float) -> None:
        """Its sums."""
        sequence = call.sequence
        self._charges.ended(sequence)
        part = self._part[sequence.tenant]
        self.ttft_s[sequence.priority, part].add(sequence.first_token_s - call.sent_s)
        self.queued_s.add(sequence.first_scheduled_s - call.sent_s)
        self.calls[self._index[sequence.tenant]] += 1
        self.num_calls += 1
        self.num_prompt_tokens += sequence.num_prompt_tokens
        self.num_cached_tokens += sequence.num_cached_tokens
        self.num_output_tokens += sequence.num_output_tokens
        self.num_computed_tokens += call.num_computed_tokens
        self.num_ideal_tokens += call.num_ideal_tokens

    def stepped(self, plan: StepPlan, planned_s: float, now_s: float) -> None:
        """Charges, and who waits."""
        self.num_steps += 1
        self.busy_s += now_s - planned_s
        charges: dict[int, float] = {self._index[name]: charge for name, charge in self._charges.of_step(plan).items()}
        began, ended, started = self._waits.stepped(plan)
        self._ageing.stepped(plan, started, planned_s)
        self.gap.set_backlogged(began, True)
        # The step in which a tenant's last waiting sequence started still belongs to its backlog.
        self.gap.charge(charges)
        self.gap.set_backlogged(ended, False)
        for tenant, charge in charges.items():
            self.largest_step_charge = max(self.largest_step_charge, charge / self._members[tenant].weight)
            self.charge[tenant] += charge
            self.service.add(now_s, tenant, charge)

    def result(
        self,
        policy: str,
        leases: bool,
        lost_leases: int,
        makespan_s: float,
        preemptions: int,
        evicted_pages: int,
        quantum: float | None,
        cpu_s: float,
    ) -> Result:
        """Everything, with what only the caller knows."""
        return Result(
            policy=policy,
            leases=leases,
            lost_leases=lost_leases,
            num_requests=self.num_calls,
            num_programs=self.num_programs,
            num_steps=self.num_steps,
            makespan_s=makespan_s,
            busy_s=self.busy_s,
            prompt_tokens=self.num_prompt_tokens,
            output_tokens=self.num_output_tokens,
            cached_tokens=self.num_cached_tokens,
            computed_tokens=self.num_computed_tokens,
            ideal_tokens=self.num_ideal_tokens,
            preemptions=preemptions,
            evicted_pages=evicted_pages,
            gap=self.gap.largest,
            gap_pair=(self._members[self.gap.pair[0]].name, self._members[self.gap.pair[1]].name)
            if self.gap.largest
            else ("", ""),
            gap_bound=None if quantum is None else 2 * (2 * quantum + self.largest_step_charge),
            largest_step_charge=self.largest_step_charge,
            ttft_s=self._ttft(),
            queued_s=self.queued_s.summary(),
            num_overdue=self._ageing.num_overdue,
            num_late=self._ageing.num_late,
            completion_s=self.completion_s.summary(),
            engine_s=self.engine_s.summary(),
            tenants=tuple(self._tenant(index, member) for index, member in enumerate(self._members)),
            stretch_s=self.service.width_s,
            cpu_s=cpu_s,
        )

    def _ttft(self) -> dict[str, Summary]:
        every = Samples()
        for samples in self.ttft_s.values():
            every.extend(samples)
        groups = {f"{priority}/{part}": samples.summary() for (priority, part), samples in sorted(self.ttft_s.items())}
        return {"all": every.summary()} | groups

    def _tenant(self, index: int, member: Member) -> TenantResult:
        service = tuple(stretch[index] for stretch in self.service.sums)
        return TenantResult(member.name, member.part, member.weight, self.calls[index], self.charge[index], service)
