"""What the parts of the scheduler share: who runs, who waits, and the step being planned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_runtime.scheduler.counters import Counters
from radixserve_runtime.scheduler.lookup import Record
from radixserve_runtime.scheduler.plan import Chunk
from radixserve_runtime.scheduler.policy import BACKGROUND_RANK, priority_rank
from radixserve_runtime.scheduler.sequence import Sequence, Status

if TYPE_CHECKING:
    from radixserve_runtime.cache.node import TokenRun
    from radixserve_runtime.scheduler.accounts import Program, Tenant
    from radixserve_runtime.scheduler.waiting import WaitingQueue


@dataclass(slots=True)
class Tracked:
    """What the scheduler knows about a sequence that nobody else needs."""

    tokens: TokenRun
    """The sequence's `token_ids` in the form that compares fast."""
    since_s: float
    """When it was added, or preempted last."""
    tenant: Tenant
    program: Program
    cache_tick: int = 0
    """The cache's, when it was added."""
    cache_version: int = -1
    num_cached_tokens: int = 0
    """Found in the cache when its version was `cache_version`."""
    num_known_tokens: int = 0
    """Of its beginning, what was computed before it was added, or before it was preempted."""
    num_lost_tokens: int = 0
    """What the cache has evicted of that: as `num_cached_tokens` was found."""
    frontier: int = 0
    """Tokens that were charged: what is computed again after a preemption isn't charged again."""
    start_frontier: int = 0
    """`frontier` when it was last admitted. Beyond it the sequence has got on since."""
    is_deferred: bool = False
    """It could have started, and waits for a prefix that another computes."""
    is_overdue: bool = False
    """It was admitted because it was overdue: it doesn't yield to a higher class any more."""
    last_chunk_s: float = 0.0
    """When it was last given a chunk, or admitted."""
    lane: tuple[int, int] = (0, 0)
    """Where it waits (waiting.py)."""
    num_counted_tokens: int = 0
    """Its part of its tenant's `num_waiting_uncached_tokens`."""
    guesses: Record = field(default_factory=Record)
    """How those at what follows have fared."""

    @property
    def has_got_on(self) -> bool:
        """Whether it computed anything new since it was last admitted. Only then does fairness take its slot, or none would end."""
        return self.frontier > self.start_frontier


@dataclass(slots=True)
class SchedulerState:
    """All sequences that have not ended. Each is tracked, and either waits or runs."""

    waiting: WaitingQueue
    running: dict[Sequence, None] = field(default_factory=dict[Sequence, None])
    tracked: dict[Sequence, Tracked] = field(default_factory=dict[Sequence, Tracked])
    counters: Counters = field(default_factory=Counters)

    def start(self, sequence: Sequence) -> None:
        """From the waiting to the running."""
        tracked = self.tracked[sequence]
        self.waiting.remove(sequence, tracked)
        self.running[sequence] = None
        tracked.tenant.num_running += 1
        tracked.start_frontier = tracked.frontier
        sequence.status = Status.RUNNING

    def stop(self, sequence: Sequence) -> None:
        """Out of the running."""
        del self.running[sequence]
        self.tracked[sequence].tenant.num_running -= 1

    def cut(self, sequence: Sequence, num_tokens: int) -> None:
        """A sequence has its first so many tokens alone. Its pages stay as they are."""
        tracked = self.tracked[sequence]
        del sequence.token_ids[num_tokens:]
        del tracked.tokens[num_tokens:]
        tracked.frontier = min(tracked.frontier, num_tokens)

    def forget_draft(self, sequence: Sequence) -> None:
        """Cut a sequence back to what was drawn."""
        self.cut(sequence, sequence.num_tokens - sequence.num_draft)
        sequence.num_draft = 0

    def class_rank(self, sequence: Sequence) -> int:
        """Its class; what was admitted as overdue is above the background."""
        rank = priority_rank(sequence)
        return BACKGROUND_RANK - 1 if rank == BACKGROUND_RANK and self.tracked[sequence].is_overdue else rank


@dataclass(slots=True)
class Step:
    """The step being planned."""

    running: list[Sequence]
    """Those that ran before, the most entitled first."""
    now_s: float = 0.0
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    planned: set[Sequence] = field(default_factory=set[Sequence])
    """Those that have a chunk: they are not preempted any more."""
    preempted: list[Sequence] = field(default_factory=list[Sequence])
    num_yielded: int = 0
    """How many of the preempted made way for others, rather than being short of pages."""
    copies: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    @property
    def is_short_of_pages(self) -> bool:
        """Whether pages had to be taken from running sequences."""
        return len(self.preempted) > self.num_yielded

    def add(self, sequence: Sequence, count: int) -> None:
        """The next `count` tokens of a sequence go through the model."""
        self.chunks.append(Chunk(sequence, sequence.num_computed, count))
        self.planned.add(sequence)
