"""When waiting sequences may start: at any step, or only as a batch. The batch modes are baselines for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from radixserve_runtime.scheduler.sequence import Sequence, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve_runtime.scheduler.accounts import Tenant
    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.waiting import WaitingQueue


class Gate(Protocol):
    """Decides who of the waiting may start."""

    def candidates(self, waiting: WaitingQueue, window: int, now_s: float, served: Mapping[Tenant, None]) -> list[Sequence]:
        """Those of the waiting that may start now; only about the first `window` are looked at (`WaitingQueue.heads`). Called in every step."""
        ...

    @property
    def makes_way(self) -> bool:
        """Whether running sequences may lose their slots to those of the waiting that have the better claim."""
        ...

    def left(self, sequence: Sequence, num_waiting: int) -> None:
        """It finished or was cancelled, while so many wait."""
        ...

    def deadline_s(self, waiting: WaitingQueue) -> float | None:
        """When waiting sequences may start without anything else happening; None: not by waiting alone."""
        ...

    @property
    def num_padded(self) -> int:
        """Slots that finished sequences keep."""
        ...


class ContinuousGate:
    """A sequence starts as soon as there is room."""

    num_padded = 0
    makes_way = True

    def candidates(self, waiting: WaitingQueue, window: int, now_s: float, served: Mapping[Tenant, None]) -> list[Sequence]:
        """The first of them all."""
        return waiting.heads(window, now_s, served)

    def left(self, sequence: Sequence, num_waiting: int) -> None:
        """Its slot is free at once."""

    def deadline_s(self, waiting: WaitingQueue) -> float | None:
        """Nothing waits for a time."""
        return None


class BatchGate:
    """One batch after the other: the next begins when every member of this one has ended.

    A batch is formed when it is full, or when its first member has waited for the delay. `dynamic`: also at once when
    the engine has just become free, from whatever waits. `static`: always waits for a full batch or the delay, and
    finished members keep their slots until the batch ends.
    """

    makes_way = False

    def __init__(self, size: int, delay_s: float, pads: bool) -> None:
        self._size = size
        self._delay_s = delay_s
        self._pads = pads
        self._members: dict[Sequence, None] = {}
        self._batch_size = 0
        self._just_free = False

    @property
    def num_padded(self) -> int:
        """Slots of members that have ended."""
        return self._batch_size - len(self._members) if self._pads and self._members else 0

    def candidates(self, waiting: WaitingQueue, window: int, now_s: float, served: Mapping[Tenant, None]) -> list[Sequence]:
        """Members that have no slot. Forms the next batch if it is time."""
        if not self._members:
            self._form(waiting, now_s)
        return [sequence for sequence in self._members if sequence.status is Status.WAITING]

    def _form(self, waiting: WaitingQueue, now_s: float) -> None:
        oldest_s = waiting.oldest_s
        just_free, self._just_free = self._just_free and not self._pads, False
        if oldest_s is not None and (just_free or len(waiting) >= self._size or now_s >= oldest_s + self._delay_s):
            self._members = dict.fromkeys(waiting.heads(self._size, now_s, {})[: self._size])
            self._batch_size = len(self._members)

    def left(self, sequence: Sequence, num_waiting: int) -> None:
        """One member less; after the last the batch is over."""
        if sequence in self._members:
            del self._members[sequence]
            self._just_free = not self._members and num_waiting > 0

    def deadline_s(self, waiting: WaitingQueue) -> float | None:
        """The end of the first one's delay, while no batch runs."""
        oldest_s = waiting.oldest_s
        return None if self._members or oldest_s is None else oldest_s + self._delay_s


def make_gate(config: SchedulerConfig) -> Gate:
    """The gate of the mode that the settings name."""
    if config.schedule == "continuous":
        return ContinuousGate()
    return BatchGate(config.num_slots, config.max_queue_delay_ms / 1e3, config.schedule == "static")
