"""Eviction between owners: a queue of leaves for each, and a heap of owners by the leaf that each would lose first.

Leaves under a lease go after all others, the longest leases first. Among either kind:

1. who is over its own limit (`max_pages`) goes first, whoever is most over;
2. then the least recently used leaf (or the longest leased one) of all who are over their reserved share, and of nobody more than is over it.
   But while some owner keeps more by leases than its share of the pool (`Accounts.lease_share`), that one's leases go before other leases, and all that
   it has goes before what those have who use pages now and have no more than half of theirs: leases squeeze nobody out of the pool;
3. then whoever asks takes from itself, also within its reserved share. What others have reserved it never gets.

The second is by use and not by size on purpose: without configured shares the pool is one cache, and where the most
pages are is also where the most hits are. Who wants a part of its own reserves it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from radixserve_runtime.cache.eviction import EvictionQueue, longest_leased

if TYPE_CHECKING:
    from radixserve_runtime.cache.accounts import Account, Accounts
    from radixserve_runtime.cache.eviction import EvictionKey
    from radixserve_runtime.cache.node import Node


class _Kind:
    """The queues of all owners for leaves of one kind, and the heap over them.

    An owner has at most one valid entry in the heap, named in `_entries`; its key is never larger than the key of the
    leaf that the owner would lose first, so it is repaired when it comes up. Parked owners have none.
    """

    def __init__(self, key: EvictionKey, leased: bool, accounts: Accounts) -> None:
        self._key = key
        self._leased = leased
        self._accounts = accounts
        self._queues: dict[Account, EvictionQueue] = {}
        self._heap: list[tuple[tuple[float, ...], int, Account]] = []
        self._entries: dict[Account, tuple[tuple[float, ...], int]] = {}
        self._serial = 0

    def push(self, account: Account, node: Node) -> None:
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = EvictionQueue(self._key, self._leased)
        self._enter(account, queue.push(node))

    def _enter(self, account: Account, key: tuple[float, ...]) -> None:
        entry = self._entries.get(account)
        if account.parked or (entry is not None and entry[0] <= key):
            return
        self._serial += 1
        self._entries[account] = (key, self._serial)
        heapq.heappush(self._heap, (key, self._serial, account))

    def take_in(self, account: Account) -> None:
        """It isn't parked any more."""
        queue = self._queues.get(account)
        top = queue.top() if queue else None
        if top is not None:
            self._enter(account, top)

    def pop(self, account: Account) -> Node | None:
        """The leaf that this owner would lose first."""
        queue = self._queues.get(account)
        return queue.pop() if queue else None

    def first(self) -> Account | None:
        """Of the owners over their reserved share, the one whose leaf goes first. Parks those who are within it."""
        while self._heap:
            key, serial, account = self._heap[0]
            entry = self._entries.get(account)
            if entry is None or entry[1] != serial:
                heapq.heappop(self._heap)
                continue
            top = self._queues[account].top()
            if top is not None and account.num_over_reserved > 0 and top <= key:
                return account
            heapq.heappop(self._heap)
            del self._entries[account]
            account.parked = account.num_over_reserved <= 0
            if top is not None:
                self._enter(account, top)
        return None

    def largest(self) -> Account | None:
        """Of all owners, the one that is most over its own limit."""
        for account in self._accounts.over_limit():
            queue = self._queues.get(account)
            if queue is not None and queue.top() is not None:
                return account
        return None

    def any(self) -> Account | None:
        """Some owner that has a leaf."""
        return next((account for account, queue in self._queues.items() if queue.top() is not None), None)


class EvictionOrder:
    """All unlocked leaves of the tree."""

    def __init__(self, key: EvictionKey, accounts: Accounts) -> None:
        self._accounts = accounts
        self._plain = _Kind(key, False, accounts)
        self._leased = _Kind(longest_leased, True, accounts)

    def push(self, node: Node) -> None:
        """The node has become an unlocked leaf, or a leaf of the other kind."""
        assert node.root is not None
        kind = self._leased if node.leases else self._plain
        kind.push(node.root.account, node)

    def pop_for(self, taker: Account | None, *, leased: bool = True) -> tuple[Node, int] | None:
        """The leaf that goes next for `taker`'s sake, and how many pages it may lose. None: nothing that `taker` may take.

        Without a taker reserves are kept as long as there is anything else. Without `leased` leases are no leaf's end.
        """
        while self._accounts.grown:
            account = self._accounts.grown.pop()
            self._plain.take_in(account)
            self._leased.take_in(account)
        hoarder = self._accounts.over_leased() if leased else None
        for kind in (self._plain, self._leased) if leased else (self._plain,):
            found = self._pop_of_kind(kind, taker, hoarder)
            if found is not None:
                return found
        return None

    def _pop_of_kind(self, kind: _Kind, taker: Account | None, hoarder: Account | None) -> tuple[Node, int] | None:
        account = kind.largest()
        allowance = account.num_pages - account.max_pages if account else 0
        if account is None:
            account = kind.first()
            if hoarder is not None and (kind is self._leased or self._is_modest(account)):
                return self._pop_of_hoarder(kind, hoarder)
            allowance = account.num_over_reserved if account else 0
        if account is None:
            account = taker or kind.any()
            # A leaf may hold public pages alone, which nobody is charged for: it goes all the same.
            allowance = max(1, account.num_pages) if account else 0
        node = kind.pop(account) if account else None
        return (node, allowance) if node else None

    def _is_modest(self, account: Account | None) -> bool:
        """Whether it uses pages, and has no more of them than half of its share."""
        return account is not None and account.num_in_use > 0 and 2 * account.num_pages <= self._accounts.lease_share(account)

    def _pop_of_hoarder(self, kind: _Kind, account: Account) -> tuple[Node, int] | None:
        """What it has in the cache, then its leases, down to its share of these."""
        node = kind.pop(account)
        if node is None and kind is self._plain:
            kind, node = self._leased, self._leased.pop(account)
        over = account.num_leased - self._accounts.lease_share(account) if kind is self._leased else account.num_over_reserved
        return (node, max(1, over)) if node else None

    def pop_own(self, account: Account) -> Node | None:
        """The leaf that an owner loses first for its own sake."""
        return self._plain.pop(account) or self._leased.pop(account)
