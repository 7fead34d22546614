"""Events cross from the client's I/O thread into the event loop: what comes while the loop is busy, or in one frame, crosses together.

Waking a loop costs a system call and the interpreter's lock; a step's tokens of sixteen streams come within a few microseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.protocol import Event


class Arrival(NamedTuple):
    """An event, of which of a request's programs, and when it came (monotonic seconds)."""

    program: int
    event: Event
    at: float


class Crossing:
    """The way into the loop that runs when it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[tuple[Callable[[Arrival], None], Arrival]] = deque()

    def to(self, arrived: Callable[[Arrival], None], program: int) -> Callable[[Event], None]:
        """A callback for the I/O thread: `arrived` is called in the loop, in the order of the events."""
        under_way = self._under_way

        def on_event(event: Event) -> None:
            under_way.append((arrived, Arrival(program, event, time.monotonic())))
            # Counted after it was added: if there is another, the loop has yet to take that one, and looks for more afterwards.
            if len(under_way) == 1:
                try:
                    self._loop.call_soon_threadsafe(self._take)
                except RuntimeError:
                    # The loop is closed: the server is gone, and nobody waits for these programs.
                    under_way.clear()

        return on_event

    def _take(self) -> None:
        # Until it is empty: who finds something in it doesn't wake the loop.
        under_way = self._under_way
        while under_way:
            arrived, arrival = under_way.popleft()
            try:
                arrived(arrival)
            except Exception as error:  # the others still get theirs
                self._loop.call_exception_handler({"message": "an event could not be handed on", "exception": error})
