"""The waiting sequences: one queue a lane, so that the head of the order is found without looking at all of them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from radixserve_runtime.scheduler.policy import Policy
    from radixserve_runtime.scheduler.sequence import Sequence


class WaitingQueue:
    """Sequences by lane (see `Policy.lane`), each lane by arrival. Adding and removing take O(1)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lanes: dict[Hashable, OrderedDict[Sequence, float]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        for lane in self._lanes.values():
            yield from lane

    def push(self, sequence: Sequence, since_s: float) -> None:
        """To the back of its lane; it waits since `since_s`."""
        self._lanes.setdefault(self._policy.lane(sequence), OrderedDict())[sequence] = since_s
        self._size += 1

    def push_front(self, sequence: Sequence, since_s: float) -> None:
        """To the front of its lane, for a preempted sequence."""
        self.push(sequence, since_s)
        self._lanes[self._policy.lane(sequence)].move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Take it out. Raises KeyError if it isn't here."""
        name = self._policy.lane(sequence)
        lane = self._lanes[name]
        del lane[sequence]
        if not lane:
            del self._lanes[name]
        self._size -= 1

    def head(self, size: int, now_s: float) -> list[Sequence]:
        """The first `size` by the policy's order, leaving cached prefixes aside. O(lanes + size log lanes)."""
        lanes = list(self._lanes.values())
        if len(lanes) == 1:
            return list(islice(lanes[0], size))
        merged = heapq.merge(*lanes, key=lambda sequence: self._policy.key(sequence, 0, now_s))
        return list(islice(merged, size))

    @property
    def oldest_s(self) -> float | None:
        """Since when the first has been waiting, or None."""
        return min((next(iter(lane.values())) for lane in self._lanes.values()), default=None)
