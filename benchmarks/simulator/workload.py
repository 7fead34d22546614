"""Sessions with a tenant, a class, a time and token ids, made one at a time from a trace that is repeated as often as needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .draws import unit
from .numbering import Ids, Numbering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .sessions import Session, Trace
    from .tenants import ClassMix, Tenants


@dataclass(slots=True, eq=False)
class Program:
    """One session at work."""

    number: int
    """From 1 on; negative: see `is_background`."""
    session: Session
    tenant: str
    priority: str
    start_s: float
    numbering: Numbering
    num_unshared: int
    """Tokens of shared blocks that its tenant has not sent before: the first session with them computes them."""
    conversation: int
    """What the scheduler is told as the program: sessions of one conversation are one program."""

    @property
    def is_background(self) -> bool:
        """Whether it is there to press on the others, and not one of the trace's."""
        return self.number < 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When sessions start."""

    rate: float
    """Sessions a second."""
    trace_rate: float
    """Sessions a second in the trace's own time; 0 where it has none."""
    trace_period_s: float
    """After so many seconds of its own time the trace begins again."""
    seed: int

    def times(self) -> ArrivalClock:
        """A new clock for one run."""
        return ArrivalClock(self)


class ArrivalClock:
    """Turns sessions into arrival times: the trace's own, sped up to the rate, or a Poisson process of that rate."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._now_s = 0.0
        self._number = 0

    def next_s(self, session: Session, repetition: int) -> float:
        """Never before the session before it."""
        arrivals = self._arrivals
        if session.start_s is not None and arrivals.trace_rate > 0:
            trace_s = repetition * arrivals.trace_period_s + session.start_s
            self._now_s = max(self._now_s, trace_s * arrivals.trace_rate / arrivals.rate)
        else:
            self._now_s -= math.log1p(-unit(arrivals.seed, 3, self._number)) / arrivals.rate
            self._number += 1
        return self._now_s


class Workload:
    """Iterates over programs in order of their start; each iteration gives the same ones."""

    def __init__(
        self, trace: Trace, tenants: Tenants, classes: ClassMix, arrivals: Arrivals, num_requests: int, pool_tokens: int
    ) -> None:
        self._trace = trace
        self._tenants = tenants
        self._classes = classes
        self._arrivals = arrivals
        self._num_requests = num_requests
        self._pool_tokens = pool_tokens
        self.num_skipped_sessions = 0
        """Sessions of the latest iteration that had a request larger than the pool."""

    def ids(self) -> Ids:
        """Fresh token ids for one run."""
        return Ids(self._trace.block_tokens)

    def __call__(self, ids: Ids) -> Iterator[Program]:
        """Programs until the number of requests is reached (the last session is whole, so it may be a few more)."""
        clock = self._arrivals.times()
        shared: dict[int, int] = {}
        introduced: set[tuple[str, int]] = set()
        left, number, repetition = self._num_requests, 0, 0
        self.num_skipped_sessions = 0
        while left > 0:
            first_block, highest, before = ids.blocks(0), -1, left
            for session in self._trace.sessions():
                if not self._fits(session):
                    self.num_skipped_sessions += 1
                    continue
                if session.blocks_are_global:
                    highest = max(highest, session.highest_block)
                else:
                    first_block = ids.blocks(session.highest_block + 1)
                tenant = self._tenants.of(session.group, repetition)
                number += 1
                yield self._program(session, number, repetition, tenant, clock, Sharing(ids, first_block, shared, introduced))
                left -= session.num_requests
                if left <= 0:
                    break
            if left == before:
                raise ValueError("no session of the trace fits the pool: raise --kv-tokens or lower --scale-length")
            # A repetition's global ids are its own: the next begins past them.
            ids.blocks(highest + 1)
            repetition += 1

    def _fits(self, session: Session) -> bool:
        return all(request.num_prompt_tokens + request.num_output_tokens <= self._pool_tokens for request in session.requests())

    def _program(
        self, session: Session, number: int, repetition: int, tenant: str, clock: ArrivalClock, sharing: Sharing
    ) -> Program:
        return Program(
            number=number,
            session=session,
            tenant=tenant,
            priority=self._classes.of(number),
            start_s=clock.next_s(session, repetition),
            numbering=sharing.numbering(session),
            num_unshared=sharing.unshared(session, tenant),
            # Two integers in one, so that equal groups of different repetitions differ.
            conversation=(repetition << 40) + session.group + 1 if session.blocks_are_global else number,
        )


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which blocks a session shares with others."""

    ids: Ids
    first_block: int
    shared: dict[int, int]
    """First block by `Session.shared_key`."""
    introduced: set[tuple[str, int]]

    def numbering(self, session: Session) -> Numbering:
        """The session's token ids."""
        if not session.num_shared_blocks:
            return Numbering(self.ids, self.first_block)
        if session.shared_key not in self.shared:
            self.shared[session.shared_key] = self.ids.blocks(session.num_shared_blocks)
        return Numbering(self.ids, self.first_block, session.num_shared_blocks, self.shared[session.shared_key])

    def unshared(self, session: Session, tenant: str) -> int:
        """Tokens of shared blocks that are new to the tenant."""
        key = (tenant, session.shared_key)
        if not session.num_shared_blocks or key in self.introduced:
            return 0
        self.introduced.add(key)
        return session.num_shared_blocks * self.ids.block_tokens
