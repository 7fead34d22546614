"""Which leaf goes first: a heap of unlocked leaves, repaired lazily."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.cache.node import Node

#: Order of eviction: the leaf with the smallest key goes first. A leaf whose key grew while it waited is put back when
#: its turn comes. A key that can shrink while a leaf waits needs a push of its own and isn't supported here.
EvictionKey: TypeAlias = "Callable[[Node], tuple[float, ...]]"


def least_recently_used(node: Node) -> tuple[float, ...]:
    """The default order."""
    return (node.last_used,)


class EvictionQueue:
    """Unlocked leaves by key. Push and pop take O(log n).

    An entry isn't removed when its leaf is locked, used or gets a child; it is dropped or pushed again when it comes up.
    Each node has at most one entry, so the heap is never larger than the tree was at its largest.
    """

    def __init__(self, key: EvictionKey = least_recently_used) -> None:
        self._key = key
        self._heap: list[tuple[tuple[float, ...], int, Node]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: Node) -> None:
        """The node has become an unlocked leaf."""
        if not node.queued:
            node.queued = True
            self._serial += 1
            heapq.heappush(self._heap, (self._key(node), self._serial, node))

    def pop(self) -> Node | None:
        """The unlocked leaf that goes first, or None if there is none."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            node.queued = False
            if not node.is_evictable:
                continue
            if self._key(node) > key:
                self.push(node)
                continue
            return node
        return None
