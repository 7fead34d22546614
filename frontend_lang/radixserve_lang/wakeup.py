"""Waking the I/O thread out of its poll."""

from __future__ import annotations

import contextlib
import socket


class Wakeup:
    """A socket pair. Wakes that come before the next `drain` are one byte; a wake is never lost."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._pending = False

    def fileno(self) -> int:
        """For the poller."""
        return self._reader.fileno()

    def wake(self) -> None:
        """From any thread, after putting the work where the I/O thread looks for it."""
        if self._pending:
            return
        self._pending = True
        # Full means awake already; closed means that nobody is left to wake.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def drain(self) -> None:
        """By the I/O thread, before it looks for work. Reading comes first: a wake in between finds `_pending` still set,
        and its work is seen by the look that follows."""
        with contextlib.suppress(OSError):
            self._reader.recv(64)
        self._pending = False

    def close(self) -> None:
        """By the I/O thread, last."""
        self._reader.close()
        self._writer.close()
