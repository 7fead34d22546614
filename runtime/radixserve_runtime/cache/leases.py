"""Leases: paths of the tree that are evicted last, for a while.

Branches take them for the time of a tool; the scheduler and the engine take short ones themselves, which nobody is told about:
of what waits with a context that its program has computed, and of what has just ended and most likely goes on at once.

A lease is soft: it can't wedge the pool, however many there are. It ends when it is released, when its time is over, or
when the first of its pages is evicted: whoever comes back must compute from there on anyway. What is left of a broken path
goes after all that is under no lease, as somebody comes back to it, and before another lease is broken.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from radixserve_runtime.cache.accounts import Namespace
    from radixserve_runtime.cache.node import Node
    from radixserve_runtime.cache.order import EvictionOrder
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.cache.tree import Tree


@dataclass(eq=False, slots=True)
class Lease:
    """One branch's lease."""

    key: Hashable
    until_s: float
    back_s: float
    """When whoever holds it is expected back at the latest. The last goes first."""
    is_told: bool
    """Whether its end is to be reported. Once it is broken it has been."""
    node: Node | None
    """Where the leased path ends; None when the tree has nothing of it that could be lost."""
    is_broken: bool = False
    """Its end was evicted."""


class Leases:
    """All leases, by a key that the caller chooses: a number for those that are reported when they are lost."""

    def __init__(self, cache: RadixCache, tree: Tree, order: EvictionOrder) -> None:
        self._cache = cache
        self._tree = tree
        self._order = order
        self._leases: dict[Hashable, Lease] = {}
        self._num_told = 0
        self._ends: list[tuple[float, int, Lease]] = []
        self._serial = 0
        self._lost: list[int] = []

    def __len__(self) -> int:
        return sum(not lease.is_broken for lease in self._leases.values())

    @property
    def num_told(self) -> int:
        """Those that branches took, and that are whole."""
        return self._num_told

    def __contains__(self, key: Hashable) -> bool:
        return key in self._leases

    def take(
        self, key: Hashable, namespace: Namespace, token_ids: Sequence[int], until_s: float, back_s: float | None = None
    ) -> int:
        """Lease as much of a prompt as the tree has, in place of this key's earlier lease; returns how many tokens that is.

        Costs O(log leases + pages that come under a lease) beside the match.
        """
        self.release(key)
        match = self._cache.match(namespace, token_ids)
        lock = self._cache.lock(match)
        # What is public is pinned and needs no lease.
        private = lock.root.namespace == namespace and lock.node.parent is not None
        is_told = isinstance(key, int)
        self._num_told += is_told
        end = lock.node if private else None
        back_s = until_s if back_s is None else back_s
        lease = self._leases[key] = Lease(key, until_s, back_s, is_told, end)
        if lease.node is not None:
            self._tree.lease(lease.node, lease)
        self._cache.unlock(lock)
        if until_s < math.inf:
            self._serial += 1
            heapq.heappush(self._ends, (until_s, self._serial, lease))
        return match.num_tokens

    def release(self, key: Hashable) -> bool:
        """End a lease; False if there is none, or no more than the rest of one. It isn't reported as lost."""
        lease = self._leases.pop(key, None)
        if lease is None:
            return False
        self._num_told -= lease.is_told
        node = lease.node
        if node is not None and node.leases:
            self._tree.unlease(node, lease)
            if node.is_evictable:
                self._order.push(node)
        return not lease.is_broken

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
                is_told = lease.is_told
                self.release(lease.key)
                self._tell(lease, is_told)
        if len(self._ends) > 2 * len(self._leases) + 64:
            # Released long before their time: they need not be remembered so long.
            self._ends = [entry for entry in self._ends if self._leases.get(entry[2].key) is entry[2]]
            heapq.heapify(self._ends)

    def lose(self, node: Node) -> None:
        """Pages at the end of this node are evicted: its leases are broken. What is left of their paths goes before another lease is broken."""
        for lease in node.leases or ():
            if not lease.is_broken:
                lease.is_broken, lease.back_s = True, math.inf
                self._num_told -= lease.is_told
                self._tell(lease, lease.is_told)
                lease.is_told = False

    def _tell(self, lease: Lease, is_told: bool) -> None:
        if is_told and isinstance(lease.key, int):
            self._lost.append(lease.key)

    def take_lost(self) -> list[int]:
        """Keys of the leases that time or eviction ended since the last call."""
        lost, self._lost = self._lost, []
        return lost
