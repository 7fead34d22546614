"""What one step does. The scheduler writes it, the engine carries it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + count) of one sequence go through the model in this step."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        """First token after the chunk."""
        return self.start + self.count

    @property
    def completes(self) -> bool:
        """Whether the sequence has no uncomputed token left afterwards, so that the next one can be drawn."""
        return self.end == self.sequence.num_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks of one step. Pages for all of them are already in each sequence's `pages`."""

    chunks: tuple[Chunk, ...] = ()
    copies: tuple[tuple[int, int, int], ...] = ()
    """(source page, destination page, tokens): to be done before the step, in order."""
    preempted: tuple[Sequence, ...] = field(default=())

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(chunk.count for chunk in self.chunks)
