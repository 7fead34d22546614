"""What the parts of the scheduler share: who runs, who waits, and the step being planned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.counters import Counters
from radixserve_runtime.scheduler.plan import Chunk
from radixserve_runtime.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from radixserve_runtime.cache.node import TokenRun
    from radixserve_runtime.scheduler.waiting import WaitingQueue


@dataclass(slots=True)
class Tracked:
    """What the scheduler knows about a sequence that nobody else needs."""

    tokens: TokenRun
    """The sequence's `token_ids` in the form that compares fast."""
    since_s: float
    """When it was added."""
    cache_version: int = -1
    num_cached_tokens: int = 0
    """Found in the cache when its version was `cache_version`."""


@dataclass(slots=True)
class SchedulerState:
    """All sequences that have not ended. Each is tracked, and either waits or runs."""

    waiting: WaitingQueue
    running: dict[Sequence, None] = field(default_factory=dict[Sequence, None])
    tracked: dict[Sequence, Tracked] = field(default_factory=dict[Sequence, Tracked])
    counters: Counters = field(default_factory=Counters)


@dataclass(slots=True)
class Step:
    """The step being planned."""

    running: list[Sequence]
    """Those that ran before, the most entitled first."""
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    planned: set[Sequence] = field(default_factory=set[Sequence])
    """Those that have a chunk: they are not preempted any more."""
    preempted: list[Sequence] = field(default_factory=list[Sequence])
    copies: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def add(self, sequence: Sequence, count: int) -> None:
        """The next `count` tokens of a sequence go through the model."""
        self.chunks.append(Chunk(sequence, sequence.num_computed, count))
        self.planned.add(sequence)
