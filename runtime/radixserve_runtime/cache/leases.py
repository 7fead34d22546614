"""Leases: paths of the tree that are evicted last, for a while.

A lease is soft. It orders eviction and nothing else, so leases can't wedge the pool, however many there are. It ends
when it is released, when its time is over, or when the first of its pages is evicted: whoever comes back must compute
from there on anyway, and what is left of a broken path goes before another lease is broken.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.cache.accounts import Namespace
    from radixserve_runtime.cache.node import Node
    from radixserve_runtime.cache.order import EvictionOrder
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.cache.tree import Tree


@dataclass(eq=False, slots=True)
class Lease:
    """One branch's lease."""

    key: int
    until_s: float
    node: Node | None
    """Where the leased path ends; None when the tree has nothing of it that could be lost."""


class Leases:
    """All leases, by a number that the caller chooses."""

    def __init__(self, cache: RadixCache, tree: Tree, order: EvictionOrder) -> None:
        self._cache = cache
        self._tree = tree
        self._order = order
        self._leases: dict[int, Lease] = {}
        self._ends: list[tuple[float, int, Lease]] = []
        self._serial = 0
        self._lost: list[int] = []

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: int) -> bool:
        return key in self._leases

    def take(self, key: int, namespace: Namespace, token_ids: Sequence[int], until_s: float) -> int:
        """Lease as much of a prompt as the tree has, in place of this key's earlier lease; returns how many tokens that is.

        Costs O(log leases + pages that come under a lease) beside the match.
        """
        self.release(key)
        match = self._cache.match(namespace, token_ids)
        lock = self._cache.lock(match)
        # What is public is pinned and needs no lease.
        private = lock.root.namespace == namespace and lock.node.parent is not None
        lease = self._leases[key] = Lease(key, until_s, lock.node if private else None)
        if lease.node is not None:
            lease.node.leases = [*(lease.node.leases or ()), lease]
            self._tree.lease(lease.node)
        self._cache.unlock(lock)
        self._serial += 1
        heapq.heappush(self._ends, (until_s, self._serial, lease))
        return match.num_tokens

    def release(self, key: int) -> bool:
        """End a lease; False if there is none. It isn't reported as lost."""
        lease = self._leases.pop(key, None)
        if lease is None:
            return False
        node = lease.node
        if node is not None and node.leases:
            node.leases.remove(lease)
            self._tree.unlease(node)
            if not node.leases:
                node.leases = None
                if node.is_evictable:
                    self._order.push(node)
        return True

    def clear(self) -> None:
        """End all."""
        for key in list(self._leases):
            self.release(key)
        self._ends.clear()
        self._lost.clear()

    def expire(self, now_s: float) -> None:
        """End those whose time is over."""
        while self._ends and self._ends[0][0] <= now_s:
            lease = heapq.heappop(self._ends)[2]
            if self._leases.get(lease.key) is lease:
                self.release(lease.key)
                self._lost.append(lease.key)
        if len(self._ends) > 2 * len(self._leases) + 64:
            # Released long before their time: they need not be remembered so long.
            self._ends = [entry for entry in self._ends if self._leases.get(entry[2].key) is entry[2]]
            heapq.heapify(self._ends)

    def lose(self, node: Node) -> None:
        """Pages of this node are evicted: its leases are over."""
        leases, node.leases = node.leases or (), None
        self._tree.unlease(node, len(leases))
        for lease in leases:
            del self._leases[lease.key]
            self._lost.append(lease.key)

    def take_lost(self) -> list[int]:
        """Keys of the leases that time or eviction ended since the last call."""
        lost, self._lost = self._lost, []
        return lost
