"""A value that arrives: written by the I/O thread, awaited by any number of readers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

from radixserve_tokenizer.protocol import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.errors import RadixServeError


class Cell:
    """Text that grows, then an outcome. Waiting sleeps on a lock or a future, never in a loop."""

    __slots__ = ("_lock", "_pieces", "_watchers", "outcome", "settled_ns")

    def __init__(self) -> None:
        self.outcome: Done | RadixServeError | None = None
        self.settled_ns = 0
        """When the outcome came, since the epoch; 0 before that."""
        self._lock = threading.Lock()
        self._pieces: list[str] = []
        self._watchers: list[Callable[[], None]] = []

    # ---- writing -------------------------------------------------------------------------------------------------

    def add(self, text: str) -> None:
        """More text; ignored after the outcome."""
        with self._lock:
            if self.outcome is not None or not text:
                return
            self._pieces.append(text)
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    def settle(self, outcome: Done | RadixServeError) -> bool:
        """The end; only the first one counts. Returns whether this was it."""
        with self._lock:
            if self.outcome is not None:
                return False
            if isinstance(outcome, Done):
                self._complete(outcome.value)
            self.settled_ns = time.time_ns()
            self.outcome = outcome
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()
        return True

    def _complete(self, value: str) -> None:
        """Deltas joined are the value; what no delta brought comes with the end."""
        heard = "".join(self._pieces)
        if value.startswith(heard):
            if len(value) > len(heard):
                self._pieces.append(value[len(heard) :])
        else:
            self._pieces = [value]

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """What there is so far."""
        with self._lock:
            return "".join(self._pieces)

    def pieces_from(self, index: int) -> tuple[list[str], bool]:
        """Pieces after the first `index`, and whether these are the last."""
        with self._lock:
            return self._pieces[index:], self.outcome is not None

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call at every change, and now if there will be none. Called on the I/O thread; must not block."""
        with self._lock:
            settled = self.outcome is not None
            if not settled:
                self._watchers.append(watcher)
        if settled:
            watcher()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """No more calls."""
        with self._lock, contextlib.suppress(ValueError):
            self._watchers.remove(watcher)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call once, when the outcome is there."""

        def watcher() -> None:
            if self.outcome is not None:
                callback()

        self.watch(watcher)

    def wait(self) -> Done | RadixServeError:
        """Block until the outcome."""
        if self.outcome is None:
            settled = threading.Event()
            self.when_settled(settled.set)
            settled.wait()
        assert self.outcome is not None
        return self.outcome

    async def wait_async(self) -> Done | RadixServeError:
        """The same in an event loop."""
        if self.outcome is None:
            settled = LoopEvent()
            self.when_settled(settled.set)
            await settled.wait()
        assert self.outcome is not None
        return self.outcome


class LoopEvent:
    """An asyncio event that other threads may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """In the loop."""
        self._event.clear()

    async def wait(self) -> None:
        """In the loop."""
        await self._event.wait()
