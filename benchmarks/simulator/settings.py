"""What one run of the simulator is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from .cost import PRESETS, StepCost
from .scaling import TraceOptions

if TYPE_CHECKING:
    from pathlib import Path

Policy: TypeAlias = Literal["fcfs", "lpm", "vtc", "dlpm"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
Variant: TypeAlias = Policy | Literal["flat", "srpt"]
"""What can be simulated: the policies; `flat`, which is `dlpm` without levels of attained service; and `srpt`, which knows
what every program has left to compute and serves the least first, as nobody can: a limit to compare with."""
VARIANTS: tuple[Variant, ...] = (*POLICIES, "flat", "srpt")


@dataclass(frozen=True, slots=True)
class Machine:
    """The engine that is simulated."""

    cost: StepCost = PRESETS["cpu"]
    kv_tokens: int = 65_536
    page_size_tokens: int = 16
    max_running: int = 64
    max_batch_tokens: int = 512
    ageing_s: float = 10.0
    quantum: float = 512.0
    level_unit: float = 1024.0
    itl_target_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Flood:
    """Prompts that share nothing, beside the trace: one tenant that washes the cache out."""

    load: float = 0.0
    """Part of the machine that it would use alone; 0: none."""
    prompt_tokens: int = 1000
    output_tokens: int = 16
    priority: str = "background"


@dataclass(frozen=True, slots=True)
class Settings:
    """One simulation, but for the policy."""

    trace: Path
    options: TraceOptions = field(default_factory=TraceOptions)
    machine: Machine = field(default_factory=Machine)
    load: float = 1.0
    """Of the capacity that `cost.capacity_of` computes."""
    num_requests: int = 10_000
    num_tenants: int = 1
    zipf: float = 1.0
    weights: tuple[float, ...] = (1.0,)
    """Of the tenants, over and over."""
    class_mix: str = "standard:1"
    seed: int = 0
    flood: Flood = field(default_factory=Flood)
    lease_ttl_s: float = 60.0
