"""Compiles constraints without ever holding up the server's loop.

    submit -> prepare (a check, here) -> cache? -> queue -> worker process, one job at a time -> receive

Every outcome, also a refusal or a cached one, comes from `receive`, and `fileno` becomes readable when there is one.

Tenants share the worker's time and nothing else: what one has compiled is neither found nor faster for another, so that no
time tells what others send.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from radixserve_tokenizer.grammar.cache import FailureCache, SharedRoom
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.messages import Compile, Result, Start, Started
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.grammar.process import Keeper, WorkerDied
from radixserve_tokenizer.grammar.queue import FairQueue, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from radixserve_tokenizer.grammar.composite import Composite
    from radixserve_tokenizer.grammar.messages import FromWorker
    from radixserve_tokenizer.grammar.process import Worker
    from radixserve_tokenizer.protocol import Constraint

_log = logging.getLogger(__name__)

MAX_QUEUED = 256
"""Grammars that may wait for the worker; of more the last of the tenant with the most is refused."""
_START_TIMEOUT_S = 60.0
_MAX_FAILED_STARTS = 3
_RETRY_START_S = 5.0
_FAILURE_TTL_S = 60.0
_STARVED = 0.125
"""A job that had less than this part of its time on a core is not to blame that it took too long."""
_FULL = f"{MAX_QUEUED} grammars are waiting to be compiled: try again later"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A constraint is ready. `payload` is what the runtime's `GrammarRef` carries; equal constraints of one tenant have equal keys."""

    ticket: int
    key: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class CompileFailed:
    """There is no grammar. The message is for the user, and comes before anything was queued.

    `retryable`: nothing is wrong with the constraint, the compiler was full or away (a 503); else it can't be enforced (a 400).
    """

    ticket: int
    message: str
    retryable: bool = False


Outcome: TypeAlias = Compiled | CompileFailed


class GrammarService:
    """One worker process, the keeper that it is forked from, and its queue.

    vocabulary: bytes of each token, b"" for control tokens, as the runtime gets it. timeout_s: for one grammar in the
    worker. memory_mb: what the worker may take beyond its libraries. `tick` must be called a few times a second.
    """

    def __init__(
        self,
        vocabulary: Sequence[bytes],
        eos_token_ids: Iterable[int],
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        *,
        cache_mb: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = Start(vocabulary=tuple(vocabulary), eos_token_ids=tuple(eos_token_ids), memory_mb=memory_mb)
        self._timeout_s = timeout_s
        self._clock = clock
        self._payloads: SharedRoom[bytes] = SharedRoom(cache_mb << 20)
        self._failures = FailureCache(max_entries=1024, ttl_s=_FAILURE_TTL_S)
        self._jobs: dict[str, Job] = {}
        """All that are not done, by key; the running one is among them, the others are in the queue."""
        self._queue = FairQueue()
        self._running: Job | None = None
        self._started_at = self._started_cpu_s = 0.0
        self._outcomes: deque[Outcome] = deque()
        self._num_jobs = 0
        self._ended: list[Keeper] = []
        self._failed_starts = 0
        self._deadline = 0.0
        # An epoll of both sources is itself one descriptor that can be polled, and it outlives any worker.
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._keeper: Keeper | None = None
        self._worker: Worker | None = None
        self._launch()

    def submit(self, ticket: int, constraint: Constraint | Composite, tenant: str) -> None:
        """Ask for a tenant's constraint; the outcome carries the same ticket. Takes as long as the check: milliseconds at most."""
        try:
            prepared = prepare(constraint)
        except ConstraintError as error:
            self._finish(CompileFailed(ticket, str(error)))
            return
        key = _tenants_key(tenant, prepared.key)
        payload = self._payloads.get(tenant, key)
        if payload is not None:
            self._finish(Compiled(ticket, key, payload))
            return
        failure = self._failures.get(tenant, key, self._clock())
        if failure is not None:
            self._finish(CompileFailed(ticket, failure))
            return
        job = self._jobs.get(key)
        if job is None:
            if not self._has_room(tenant):
                self._finish(CompileFailed(ticket, _FULL, retryable=True))
                return
            self._num_jobs += 1
            job = self._jobs[key] = Job(self._num_jobs, tenant, key, prepared)
            self._queue.push(job)
        job.tickets.append(ticket)
        self._advance()

    def _has_room(self, tenant: str) -> bool:
        """Whether one more of this tenant may wait, if need be in place of another's."""
        if len(self._jobs) < MAX_QUEUED:
            return True
        pushed_out = self._queue.to_give_way(tenant)
        if pushed_out is None:
            return False
        self._queue.remove(pushed_out)
        self._fail(pushed_out, _FULL, retryable=True)
        return True

    def cancel(self, ticket: int) -> None:
        """Nobody wants this outcome any more. A grammar that nobody waits for is not compiled, unless it is already."""
        for key, job in list(self._jobs.items()):
            if ticket in job.tickets:
                job.tickets.remove(ticket)
                if not job.tickets and job is not self._running:
                    self._queue.remove(job)
                    del self._jobs[key]
        self._outcomes = deque(outcome for outcome in self._outcomes if outcome.ticket != ticket)

    def fileno(self) -> int:
        """A descriptor that is readable when `receive` has something to do. It stays the same for good."""
        return self._epoll.fileno()

    def receive(self) -> list[Outcome]:
        """Outcomes since the last call; none is no error. Never blocks."""
        worker = self._worker
        if worker is not None:
            try:
                worker.flush()
                for message in worker.receive():
                    self._handle(message)
            except WorkerDied as error:
                self._on_death(f"the grammar compiler crashed on it ({error})")
            self._advance()
            self._watch()
        outcomes = list(self._outcomes)
        self._outcomes.clear()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        return outcomes

    def tick(self, now: float | None = None) -> None:
        """Enforce the time limits. `now` is of the same clock as the service's (`time.monotonic`)."""
        now = self._clock() if now is None else now
        self._ended = [keeper for keeper in self._ended if not keeper.reap()]
        if self._worker is None:
            if now >= self._deadline:
                self._launch()
        elif not self._worker.is_ready and now >= self._deadline:
            self._on_death("the grammar compiler does not start")
        elif self._running is not None and now >= self._deadline:
            self._on_timeout(self._worker)
        self._advance()

    def close(self) -> None:
        """End the worker and its keeper, and forget everything."""
        if self._worker is not None:
            self._leave_worker()
        self._end_keeper()
        for keeper in self._ended:
            keeper.wait(timeout_s=2.0)
        self._ended.clear()
        self._jobs.clear()
        self._epoll.close()
        os.close(self._wake)

    @property
    def worker_pid(self) -> int | None:
        """Of the process that compiles; None while there is none."""
        return self._worker.pid if self._worker is not None and self._worker.is_ready else None

    @property
    def keeper_pid(self) -> int | None:
        """Of the process that the worker is forked from; None while there is none."""
        return self._keeper.pid if self._keeper is not None else None

    @property
    def num_waiting(self) -> int:
        """Grammars that are not done, the running one included."""
        return len(self._jobs)

    # ---- the worker ------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Another worker, and where there is no keeper another of these."""
        if self._keeper is not None and not self._keeper.is_there:
            self._end_keeper()
        if self._keeper is None:
            self._keeper = Keeper(self._start)
        self._worker = self._keeper.another()
        self._deadline = self._clock() + _START_TIMEOUT_S
        self._epoll.register(self._worker.fileno(), select.EPOLLIN)
        self._watch()

    def _watch(self) -> None:
        if self._worker is not None:
            events = select.EPOLLIN | (select.EPOLLOUT if self._worker.wants_to_send else 0)
            self._epoll.modify(self._worker.fileno(), events)

    def _handle(self, message: FromWorker) -> None:
        match message:
            case Started():
                self._failed_starts = 0
            case Result():
                job = self._running
                if job is None or job.number != message.job:
                    raise WorkerDied("an answer to nothing")
                self._stop_running()
                if message.error:
                    self._fail(job, message.error)
                    if message.is_last:
                        raise WorkerDied("it ran out of memory")
                    return
                self._payloads.put(job.tenant, job.key, message.payload, max(len(message.payload), 1))
                del self._jobs[job.key]
                for ticket in job.tickets:
                    self._finish(Compiled(ticket, job.key, message.payload))

    def _on_timeout(self, worker: Worker) -> None:
        """Its job took too long: because of what it is, or because everybody else goes before the worker, and the cores are busy."""
        if worker.cpu_s - self._started_cpu_s < _STARVED * self._timeout_s:
            self._on_death("compiling it did not come to its turn, as the server is busy: try again later", retryable=True)
        else:
            self._on_death(f"compiling it took longer than {self._timeout_s:g} s: simplify it")

    def _on_death(self, reason: str, *, retryable: bool = False) -> None:
        """The worker died or has to: its job fails with `reason`, the others go to the next worker."""
        was_ready = self._leave_worker()
        job = self._stop_running()
        if job is not None:
            _log.warning("grammar worker: %s", reason)
            self._fail(job, reason, retryable=retryable)
        elif not was_ready:
            self._failed_starts += 1
            self._end_keeper()
            _log.error("grammar worker: could not start (%d times)", self._failed_starts)
        if self._failed_starts < _MAX_FAILED_STARTS:
            self._launch()
            return
        # Starting again and again would be a loop; say so to those who wait, and try again in a while.
        self._failed_starts = 0
        self._deadline = self._clock() + _RETRY_START_S
        while (waiting := self._queue.pop()) is not None:
            self._fail(waiting, "the grammar compiler can't be started: see the server's log", retryable=True)

    def _leave_worker(self) -> bool:
        """Hear no more of the worker; whether it was ready. The keeper kills it before it forks another."""
        assert self._worker is not None
        was_ready = self._worker.is_ready
        self._epoll.unregister(self._worker.fileno())
        self._worker.close()
        self._worker = None
        return was_ready

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.end()
            self._ended.append(self._keeper)
            self._keeper = None

    def _advance(self) -> None:
        """Give the worker the next job if it is free."""
        if self._worker is None or not self._worker.is_ready or self._running is not None:
            return
        job = self._running = self._queue.pop()
        if job is None:
            return
        self._started_at, self._started_cpu_s = self._clock(), self._worker.cpu_s
        self._deadline = self._started_at + self._timeout_s
        self._worker.send(Compile(job=job.number, kind=job.prepared.kind, source=job.prepared.source, tenant=job.tenant))
        self._watch()

    def _stop_running(self) -> Job | None:
        """The job that the worker had; its time is its tenant's."""
        job, self._running = self._running, None
        if job is not None:
            self._queue.charge(job.tenant, self._clock() - self._started_at)
        return job

    def _fail(self, job: Job, message: str, *, retryable: bool = False) -> None:
        if not retryable:
            self._failures.put(job.tenant, job.key, message, self._clock())
        del self._jobs[job.key]
        for ticket in job.tickets:
            self._finish(CompileFailed(ticket, message, retryable=retryable))

    def _finish(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        os.eventfd_write(self._wake, 1)


def _tenants_key(tenant: str, key: str) -> str:
    """The key of one tenant's grammar, here and in the runtime. Names have no NUL."""
    return hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()[:32]
