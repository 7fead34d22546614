"""The worker process as the service sees it: started, fed, read, killed; never waited for."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.messages import FrameError, FrameReader, decode_from_worker, frame

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.messages import FromWorker, Start, ToWorker


def _clock_of(pid: int) -> int:
    """The id of a process's CPU clock, as clock_getcpuclockid(3) makes it on Linux."""
    return (~pid << 3) | 2


class WorkerDied(RuntimeError):  # noqa: N818 - an event to handle, not a mistake
    """The worker process is gone, or speaks nonsense. Kill and start another."""


class WorkerProcess:
    """One worker. No method blocks."""

    def __init__(self, start: Start) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._unsent = bytearray()
        self._reader = FrameReader()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "radixserve_tokenizer.grammar.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # One thread, so that it never spins beside the runtime's.
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        self.send(start)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

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

    def kill(self) -> None:
        """End it at once. `reap` says when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._socket.close()

    def reap(self) -> bool:
        """Whether the killed process is gone; asks without waiting."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> None:
        """Wait for the killed process (at shutdown only)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
