"""Which leaf goes first: a heap of unlocked leaves, repaired lazily."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.cache.node import Node

#: Order of eviction among the leaves of one owner: the leaf with the smallest key goes first. A leaf whose key grew
#: while it waited is put back when its turn comes; one whose key shrank goes by its old key.
EvictionKey: TypeAlias = "Callable[[Node], tuple[float, ...]]"


def least_recently_used(node: Node) -> tuple[float, ...]:
    """The default order."""
    return (node.last_used,)


def longest_leased(node: Node) -> tuple[float, ...]:
    """Order among leased leaves: whose time is over last goes first.

    By last use it would be the one that has waited longest, so the next to come back: with more leases than pages each
    would be lost just before it was of use.
    """
    return (-min(lease.back_s for lease in node.leases or ()),)


class EvictionQueue:
    """Unlocked leaves of one owner by key, either those under a lease or those under none. Push and pop take O(log n).

    An entry isn't removed when its leaf is locked, used, leased or gets a child; it is dropped or put back when it
    comes up. Each node has at most one entry, so the heap is never larger than the tree was at its largest.
    """

    def __init__(self, key: EvictionKey = least_recently_used, leased: bool = False) -> None:
        self._key = key
        self._leased = leased
        self._bit = 2 if leased else 1
        # (*key, serial, node): flat, as that compares in half the time. Keys of one queue have one length.
        self._heap: list[tuple[Any, ...]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: Node) -> tuple[float, ...]:
        """The node has become an unlocked leaf of this kind; returns its key."""
        key = self._key(node)
        if not node.queued & self._bit:
            node.queued |= self._bit
            self._serial += 1
            heapq.heappush(self._heap, (*key, self._serial, node))
        return key

    def top(self) -> tuple[float, ...] | None:
        """Key of the leaf that goes first, or None if there is none."""
        heap = self._heap
        while heap:
            entry = heap[0]
            node: Node = entry[-1]
            if not node.is_evictable or bool(node.leases) != self._leased:
                heapq.heappop(heap)
                node.queued &= ~self._bit
                continue
            key, now = entry[:-2], self._key(node)
            if now <= key:
                return key
            heapq.heapreplace(heap, (*now, entry[-2], node))
        return None

    def pop(self) -> Node | None:
        """The leaf that goes first, or None if there is none."""
        if self.top() is None:
            return None
        node: Node = heapq.heappop(self._heap)[-1]
        node.queued &= ~self._bit
        return node
