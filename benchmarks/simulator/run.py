"""Runs one policy on one workload."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.radix import RadixCache
from radixserve_runtime.scheduler.config import SchedulerConfig
from radixserve_runtime.scheduler.scheduler import Scheduler

from .charges import Charges
from .clock import VirtualClock
from .cost import Capacity, capacity_of
from .flood import FLOOD_TENANT, flood_programs
from .leasing import NoLeases, ToolLeases
from .loop import Simulation
from .recorder import Recorder
from .tenants import ClassMix, Member, Tenants
from .traces import open_trace
from .waits import AgeingCheck
from .workload import Arrivals, Workload

if TYPE_CHECKING:
    from .report import Result
    from .sessions import Trace
    from .settings import Machine, Settings, Variant


@dataclass(frozen=True, slots=True)
class Study:
    """A workload that policies are compared on."""

    settings: Settings
    trace: Trace
    capacity: Capacity
    tenants: Tenants
    workload: Workload

    @staticmethod
    def of(settings: Settings) -> Study:
        """Reads the trace twice: for the capacity. Raises `UnknownTraceError`, `OSError`, `ValueError`."""
        machine = settings.machine
        trace = open_trace(settings.trace, settings.options)
        capacity = capacity_of(trace, machine.cost, machine.max_running, machine.max_batch_tokens, machine.kv_tokens)
        tenants = Tenants(settings.num_tenants, settings.zipf, settings.seed)
        trace_rate = (capacity.num_sessions - 1) / capacity.last_start_s if capacity.last_start_s > 0 else 0.0
        arrivals = Arrivals(
            rate=settings.load * capacity.sessions_per_s,
            trace_rate=trace_rate,
            trace_period_s=capacity.num_sessions / trace_rate if trace_rate else 0.0,
            seed=settings.seed,
        )
        workload = Workload(
            trace, tenants, ClassMix(settings.class_mix, settings.seed), arrivals, settings.num_requests, machine.kv_tokens
        )
        return Study(settings, trace, capacity, tenants, workload)

    def run(self, policy: Variant, leases: bool = False) -> Result:
        """Simulate until every program has ended."""
        settings, machine, before_s = self.settings, self.settings.machine, time.process_time()
        members = self._members()
        clock = VirtualClock()
        pool = PagePool(machine.kv_tokens // machine.page_size_tokens, machine.page_size_tokens)
        cache = RadixCache(pool)
        config = _config(policy, machine, {member.name: member.weight for member in members})
        scheduler = Scheduler(config, cache, pool, clock)
        recorder = Recorder(
            members, Charges(config.charge), AgeingCheck(config.ageing_s, _takes_turns(policy), lambda: cache.num_evicted_pages)
        )
        ids = self.workload.ids()
        flood = flood_programs(settings.flood, machine, self.capacity.batch, ids, settings.seed) if settings.flood.load else None
        leasing = ToolLeases(cache, clock, settings.lease_ttl_s) if leases else NoLeases()
        Simulation(scheduler, clock, machine.cost, self.workload(ids), recorder, leasing, flood, policy == "srpt").run()
        return recorder.result(
            policy=policy,
            leases=leases,
            lost_leases=leasing.num_lost if isinstance(leasing, ToolLeases) else 0,
            makespan_s=clock(),
            preemptions=scheduler.counters.num_preemptions,
            evicted_pages=cache.num_evicted_pages,
            quantum=config.quantum if _takes_turns(policy) else None,
            cpu_s=time.process_time() - before_s,
        )

    def _members(self) -> list[Member]:
        weights = self.settings.weights
        members = [
            Member(name, self.tenants.part(name), weights[index % len(weights)]) for index, name in enumerate(self.tenants.names)
        ]
        return [*members, Member(FLOOD_TENANT, FLOOD_TENANT, 1.0)] if self.settings.flood.load else members


def _takes_turns(policy: Variant) -> bool:
    return policy not in ("fcfs", "lpm", "srpt")


def _config(policy: Variant, machine: Machine, weights: dict[str, float]) -> SchedulerConfig:
    """The scheduler's settings for a variant."""
    config = SchedulerConfig(
        max_batch_tokens=machine.max_batch_tokens,
        max_running=machine.max_running,
        itl_target_ms=machine.itl_target_ms,
        ageing_s=machine.ageing_s,
        quantum=machine.quantum,
        level_unit=machine.level_unit,
        tenants=weights,
    )
    match policy:
        case "flat":
            return replace(config, policy="dlpm", level_unit=math.inf)
        case "srpt":
            return replace(config, policy="fcfs", window=1 << 30, ageing_s=math.inf)
        case _:
            return replace(config, policy=policy)
