"""Settings and errors of the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


PolicyName: TypeAlias = Literal["fcfs", "lpm", "vtc", "dlpm"]


class SequenceTooLongError(ValueError):
    """The sequence can't fit the pool even if it had it alone. Shorten it, lower `max_tokens`, or start with more `--kv-tokens`."""


class EmptySequenceError(ValueError):
    """A sequence without tokens: there is nothing to continue. Begin it with the model's first token."""


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise `ValueError` for a weight that a tenant can't have."""
    for name, weight in weights.items():
        if not 0 < weight < math.inf:
            raise ValueError(f"the weight of tenant {name!r} must be a positive number, not {weight}")


@dataclass(frozen=True, slots=True)
class ChargeWeights:
    """What a tenant is charged, in charge units: one is the work of one uncached prompt token (docs/fairness.md)."""

    prefill: float = 1.0
    """A prompt token that is computed; what the cache had is free."""
    decode: float = 2.0
    """An output token that is computed: it needs a row of the LM head and a share of a step's fixed cost."""
    kv: float = 1.0
    """1,000 tokens of context, held by a running sequence for one step."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How steps are formed. Raises `ValueError` on what can't work."""

    max_batch_tokens: int = 512
    """Most tokens (prefill and decode) of one step."""
    max_running: int = 64
    """Most sequences of one step. Never more than `max_batch_tokens` are run, as each decode takes a token of the budget."""
    itl_target_ms: float = 0.0
    """Bound on the predicted duration of a step that mixes prefill beside decodes; 0: `mixed_step_factor` decides."""
    mixed_step_factor: float = 2.0
    """Without a target: how many times a pure decode step of the same batch a mixed step may take."""
    min_chunk_tokens: int = 16
    """Prefill that a mixed step makes whatever the bound says, so that a prompt always progresses."""
    schedule: Literal["continuous", "dynamic", "static"] = "continuous"
    max_queue_delay_ms: float = 50.0
    """Static and dynamic batching: how long the first waiting sequence waits for company."""
    policy: PolicyName = "dlpm"
    """Order between and within tenants (policy.py)."""
    tenants: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weights by name. Tenants that are not named have the weight 1."""
    quantum: float = 512.0
    """Charge units for each unit of weight that a tenant is served at a stretch by longest prefix (dlpm); also what one may be ahead of another that waits before it loses slots (vtc, dlpm)."""
    charge: ChargeWeights = ChargeWeights()
    level_unit: float = 1024.0
    """Programs are levelled by attained service: below this many charge units, below twice as many, four times, ... (dlpm)"""
    max_idle_records: int = 16_384
    """Tenants, and programs, that are remembered without having work; beyond that the longest idle are forgotten."""
    window: int = 64
    """How many of the waiting are looked at, at most, when slots are free."""
    ageing_s: float = 10.0
    """A sequence that waited so long (background: twice as long) is overdue: every fourth admission of its tenant goes to the oldest such."""
    prompt_lookup: bool = False
    """Whether decodes take guesses from their own text along (lookup.py). The engine turns it on; a scheduler by itself plans one token a decode."""
    growth_tokens: int = 64
    """Output for which admission keeps pages back, for every running sequence, while nothing is preempted."""

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_running", "min_chunk_tokens", "window", "growth_tokens", "max_idle_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.mixed_step_factor <= 1.0:
            raise ValueError(f"mixed_step_factor must be above 1, not {self.mixed_step_factor}")
        if self.itl_target_ms < 0 or self.max_queue_delay_ms < 0 or self.ageing_s <= 0:
            raise ValueError("itl_target_ms and max_queue_delay_ms can't be negative, and ageing_s must be positive")

        if self.quantum <= 0 or self.level_unit <= 0 or min(self.charge.prefill, self.charge.decode, self.charge.kv) < 0:
            raise ValueError("quantum and level_unit must be positive, and charge weights can't be negative")
        check_weights(self.tenants)

    @property
    def num_slots(self) -> int:
        """Most sequences that run at once."""
        return min(self.max_running, self.max_batch_tokens)
