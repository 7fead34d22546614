"""What tenants and programs were charged, and the counters that fairness goes by.

A tenant's `counter` is virtual: its charges divided by its weight. A tenant of which nothing waited and now something
does is lifted to the least counter of those that wait (as VTC does). So nothing is saved up by asking for little, nobody
pays later for what they were given while no other wanted it, and as a counter above that stays, nothing is gained by
leaving and coming back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.config import check_weights
from radixserve_runtime.scheduler.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.sequence import Sequence

#: Part of a quantum by which a tenant that has just returned may go before the others of its turn.
FRESH_SHARE = 0.25


@dataclass(eq=False, slots=True)
class Tenant:
    """One tenant's account, and how much of its work there is."""

    name: str
    weight: float = 1.0
    counter: float = 0.0
    """Charge units for each unit of weight; lifted on return."""
    fresh_until: float = -math.inf
    """It counts as just returned while its counter is below this."""
    charge: float = 0.0
    """Charge units since it is known, not divided by the weight."""
    kv_token_s: float = 0.0
    num_computed_tokens: int = 0
    """Whatever was computed for it, charged or not."""
    num_running: int = 0
    num_waiting: int = 0
    num_waiting_uncached_tokens: int = 0
    """By what the cache had of each when it was last looked at."""

    patience: Patience = field(default_factory=Patience)
    """With its programs that hold leases (holding.py)."""
    growth_tokens: float = 0.0
    """By how much a sequence adds to its program's context, about."""
    is_blocked: bool = False
    """Pages are what its waiting sequences wait for: it has no claim on others' slots."""

    @property
    def is_active(self) -> bool:
        """Whether it has any work."""
        return self.num_running + self.num_waiting > 0

    @property
    def is_fresh(self) -> bool:
        """Whether it has just returned from idleness."""
        return self.counter < self.fresh_until


@dataclass(eq=False, slots=True)
class Program:
    """One program's attained service, and its sequences that wait."""

    service: float = 0.0
    level: int = 0
    num_tracked: int = 0
    ended_s: float | None = None
    """When a sequence of it ended last."""
    contexts: dict[int, int] = field(default_factory=dict[int, int])
    """Contexts that were computed for it lately: checksums of their beginnings, by length."""
    waiting: dict[Sequence, None] = field(default_factory=dict["Sequence", None])


class Accounts:
    """All tenants and programs that have work, and those of the idle that were active last."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._weights = config.tenants
        self._quantum = config.quantum
        self._level_unit = config.level_unit
        self._growth_tokens = float(config.growth_tokens)
        self._max_idle = config.max_idle_records
        self._active: dict[str, Tenant] = {}
        self._idle: OrderedDict[str, Tenant] = OrderedDict()
        self._programs: dict[tuple[str, int], Program] = {}
        self._idle_programs: OrderedDict[tuple[str, int], Program] = OrderedDict()
        self._last_waited: Tenant | None = None
        self.num_computed_tokens = 0
        """Of all tenants."""

    def tenants(self) -> Iterable[Tenant]:
        """All that are remembered, the idle first."""
        yield from self._idle.values()
        yield from self._active.values()

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Weights from now on, 1 for who is not named. Raises `ValueError`, and then nothing has changed."""
        check_weights(weights)
        self._weights = dict(weights)
        for tenant in self.tenants():
            tenant.weight = self._weights.get(tenant.name, 1.0)

    # ---- coming and going ------------------------------------------------------------------------------------

    def enter(self, name: str) -> Tenant:
        """A sequence of a tenant was added."""
        tenant = self._active.get(name)
        if tenant is None:
            tenant = self._idle.pop(name, None) or Tenant(name, self._weights.get(name, 1.0), growth_tokens=self._growth_tokens)
            self._active[name] = tenant
        return tenant

    def lift(self, tenant: Tenant, least: float | None) -> None:
        """Something of a tenant waits now and nothing did before. `least` is the least counter of the others that wait; None: nobody does."""
        if least is not None and tenant.counter <= least:
            tenant.fresh_until = least + FRESH_SHARE * self._quantum
        if least is None:
            least = self._last_waited.counter if self._last_waited is not None else 0.0
        tenant.counter = max(tenant.counter, least)
        self._last_waited = tenant

    def served(self, tenant: Tenant) -> None:
        """Nothing of a tenant waits any more."""
        self._last_waited = tenant

    def leave(self, tenant: Tenant) -> None:
        """A sequence of the tenant ended. Without any other it is idle now."""
        if tenant.is_active:
            return
        del self._active[tenant.name]
        tenant.num_waiting_uncached_tokens = 0
        tenant.fresh_until = -math.inf
        tenant.is_blocked = False
        self._idle[tenant.name] = tenant
        if len(self._idle) > self._max_idle:
            self._idle.popitem(last=False)

    def enter_program(self, sequence: Sequence) -> Program:
        """A sequence of a program was added. Without a program it is one by itself."""
        key = (sequence.tenant, sequence.program)
        if not sequence.program:
            program = Program()
        else:
            program = self._programs.get(key) or self._idle_programs.pop(key, None) or Program()
            self._programs[key] = program
        program.num_tracked += 1
        return program

    def leave_program(self, sequence: Sequence, program: Program) -> None:
        """A sequence of a program ended. What the program has attained is remembered for a while."""
        program.num_tracked -= 1
        if program.num_tracked or not sequence.program:
            return
        key = (sequence.tenant, sequence.program)
        del self._programs[key]
        self._idle_programs[key] = program
        if len(self._idle_programs) > self._max_idle:
            self._idle_programs.popitem(last=False)

    # ---- charging --------------------------------------------------------------------------------------------

    def charge(self, tenant: Tenant, program: Program, units: float) -> bool:
        """Add to a tenant and a program; returns whether the program has changed its level."""
        tenant.charge += units
        tenant.counter += units / tenant.weight
        program.service += units
        before, program.level = program.level, int(program.service / self._level_unit).bit_length()
        return program.level != before
