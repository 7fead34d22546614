"""The worker's processes as the service sees them: started, fed, read, killed; never waited for."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.messages import FrameError, FrameReader, Started, decode_from_worker, frame

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.messages import FromWorker, Start, ToWorker

_END_S = 1.0
"""A keeper that has not ended by itself after so long is killed."""


def _clock_of(pid: int) -> int:
    """The id of a process's CPU clock, as clock_getcpuclockid(3) makes it on Linux."""
    return (~pid << 3) | 2


class WorkerDied(RuntimeError):  # noqa: N818 - an event to handle, not a mistake
    """The worker is gone, or speaks nonsense. Ask the keeper for another."""


class Worker:
    """The child of a keeper that compiles. No method blocks."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._unsent = bytearray()
        self._reader = FrameReader()
        self.pid = 0
        """Of the process; 0 until it has said that it is there."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes jobs."""
        return self.pid != 0

    @property
    def cpu_s(self) -> float:
        """Seconds of a core that it has had; infinite where the system doesn't tell, or it is gone."""
        try:
            return time.clock_gettime(_clock_of(self.pid))
        except OSError:
            return math.inf

    def fileno(self) -> int:
        """The socket, to poll."""
        return self._socket.fileno()

    @property
    def wants_to_send(self) -> bool:
        """Whether to poll for writability, too."""
        return bool(self._unsent)

    def send(self, message: ToWorker) -> None:
        """Queue a message and send what fits now."""
        self._unsent += frame(message)
        self.flush()

    def flush(self) -> None:
        """Send what fits now. A broken pipe shows at the next `receive`."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def receive(self) -> list[FromWorker]:
        """Whatever has arrived. Raises `WorkerDied`; what arrived before is then lost, as its jobs are."""
        messages: list[FromWorker] = []
        while True:
            try:
                data = self._socket.recv(1 << 18)
            except (BlockingIOError, InterruptedError):
                return messages
            except OSError as error:
                raise WorkerDied(str(error)) from error
            if not data:
                raise WorkerDied("its socket closed")
            try:
                messages += [decode_from_worker(body) for body in self._reader.feed(data)]
            except FrameError as error:
                raise WorkerDied(str(error)) from error
            for message in messages:
                if isinstance(message, Started):
                    self.pid = message.pid

    def close(self) -> None:
        """Hear no more of it. It ends when it sees that, at the latest when the keeper is asked for another."""
        self._socket.close()


class Keeper:
    """The process that has loaded the compiler and forks workers, one at a time. Only `wait` blocks."""

    def __init__(self, start: Start) -> None:
        # Of packets, so that each carries one descriptor.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._end_by_s = math.inf
        # All of the first message is there before the process is: it needs no one to feed it.
        with theirs, open(os.memfd_create("start"), "w+b") as first:
            first.write(frame(start))
            first.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "radixserve_tokenizer.grammar.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=first,
                stdout=subprocess.DEVNULL,
                # One thread, so that it never spins beside the runtime's; and a fork takes one thread along only.
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_there(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def another(self) -> Worker:
        """A new worker in place of the one there was, which is killed. If the keeper is gone, the worker is dead from the start."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        return Worker(ours)

    def end(self, now_s: float | None = None) -> None:
        """End it and its worker; `reap` says when they are gone."""
        self._control.close()
        self._end_by_s = (time.monotonic() if now_s is None else now_s) + _END_S

    def reap(self) -> bool:
        """Whether the process that was told to end is gone; asks without waiting, and kills it where it doesn't."""
        if self._process.poll() is None and time.monotonic() >= self._end_by_s:
            self._process.kill()  # and the kernel its worker
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> None:
        """Wait for the process that was told to end, then kill it (at shutdown only)."""
        try:
            self._process.wait(min(timeout_s, _END_S))
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
