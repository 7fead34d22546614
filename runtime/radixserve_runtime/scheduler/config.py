"""Settings and errors of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class SequenceTooLongError(ValueError):
    """The sequence can't fit the pool even if it had it alone. Shorten it, lower `max_tokens`, or start with more `--kv-tokens`."""


class EmptySequenceError(ValueError):
    """A sequence without tokens: there is nothing to continue. Begin it with the model's first token."""


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
    policy: Literal["lpm", "fcfs"] = "lpm"
    window: int = 64
    """How many of the waiting are looked at, at most, when slots are free."""
    ageing_s: float = 10.0
    """A sequence that waited so long counts as one class higher, and isn't passed over for a longer cached prefix any more."""
    growth_tokens: int = 64
    """Output for which admission keeps pages back, for every running sequence, while nothing is preempted."""

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_running", "min_chunk_tokens", "window", "growth_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.mixed_step_factor <= 1.0:
            raise ValueError(f"mixed_step_factor must be above 1, not {self.mixed_step_factor}")
        if self.itl_target_ms < 0 or self.max_queue_delay_ms < 0 or self.ageing_s <= 0:
            raise ValueError("itl_target_ms and max_queue_delay_ms can't be negative, and ageing_s must be positive")

    @property
    def num_slots(self) -> int:
        """Most sequences that run at once."""
        return min(self.max_running, self.max_batch_tokens)
