"""Virtual time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class VirtualClock:
    """Seconds that pass only when somebody says so, and never backwards."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        """Now."""
        return self._now_s

    def advance_to(self, time_s: float) -> None:
        """It is later now. Raises `ValueError` for a time that has passed."""
        if time_s < self._now_s:
            raise ValueError(f"time can't go back from {self._now_s} to {time_s}")
        self._now_s = time_s


class Agenda:
    """What happens when: calls in order of time, those of one time in the order in which they were planned."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial = 0

    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        """Plan a call; it is told its time, which may have passed when it comes: nothing happens within a step."""
        self._serial += 1
        heapq.heappush(self._heap, (time_s, self._serial, call))

    def run_until(self, now_s: float) -> None:
        """Everything that is due, also what that plans for now."""
        while self._heap and self._heap[0][0] <= now_s:
            time_s, _, call = heapq.heappop(self._heap)
            call(time_s)

    @property
    def next_s(self) -> float | None:
        """When the next call is due."""
        return self._heap[0][0] if self._heap else None
