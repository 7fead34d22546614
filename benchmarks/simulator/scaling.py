"""Shorter prompts of the same shape, so that long contexts fit a small pool and a patient reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scaling:
    """Lengths of a trace in tokens of the simulation. A block is a whole number of tokens, at least one."""

    trace_block_tokens: int
    block_tokens: int

    @property
    def scale(self) -> float:
        """What a length is multiplied by."""
        return self.block_tokens / self.trace_block_tokens

    def prompt(self, num_tokens: int, num_blocks: int) -> int:
        """A prompt of so many tokens, of which so many blocks have ids."""
        tail = max(0, num_tokens - num_blocks * self.trace_block_tokens)
        return max(1, num_blocks * self.block_tokens + round(tail * self.scale))

    def output(self, num_tokens: int) -> int:
        """An output; at least one token."""
        return max(1, round(num_tokens * self.scale))


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is read. Raises `ValueError` on what can't be."""

    scale_length: float = 1.0
    max_think_s: float = 60.0
    """Longer pauses are cut to this: some are hours."""
    think_s: float | None = None
    """All pauses are this long, where given."""
    shares_tools: bool = True
    """Whether agent sessions with tool definitions of the same length share those blocks (the trace compares ids within a session only)."""
    max_context: int = 0
    """Sessions end before their first request that needs more tokens than this (0: no limit)."""

    def __post_init__(self) -> None:
        if not 0 < self.scale_length <= 1:
            raise ValueError(f"lengths can be scaled by more than 0 and at most 1, not {self.scale_length}")

    def scaling(self, trace_block_tokens: int) -> Scaling:
        """For a trace with blocks of this size."""
        return Scaling(trace_block_tokens, max(1, round(trace_block_tokens * self.scale_length)))

    def pause(self, seconds: float) -> float:
        """A tool's or user's time."""
        return min(max(0.0, seconds), self.max_think_s) if self.think_s is None else self.think_s
