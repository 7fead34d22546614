"""Who refers to which page of the KV pool, and how many pages are free, cached or locked, known at any time in O(1).

Two kinds of holder refer to a page. A *sequence* reads and writes it and always locks it. A node of the radix tree
keeps it for later; the node locks it only while a sequence holds the path through that node. So a page is

- free: nobody refers to it;
- cached: only unlocked tree nodes refer to it, so eviction can free it;
- locked: a sequence or a locked node refers to it.

Cached pages on a leased path (leases.py) are counted beside that, owner by owner: `Account.num_leased`.

`num_free + num_cached + num_locked == num_pages` always.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import NOBODY, Accounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.cache.accounts import Account, Owner
    from radixserve_runtime.config import TenantShare


class OutOfPagesError(RuntimeError):
    """More pages were asked for than are free. Evict first; asking blindly is a bug of the caller."""


class PagePool:
    """Bookkeeping for `num_pages` pages of `page_size_tokens` slots each. It holds no KV itself.

    Slots of a page are written in order. `fill` of a page is one past the last slot that was ever claimed for writing
    since the page was allocated: whoever refers to the page reads only slots below it. A writer that starts at or past
    `fill` therefore disturbs nobody, however many holders the page has; a writer below it must be the only holder,
    or copy the page (`must_copy`).

    `accounts` has every owner's pages. Raises `ShareError` for shares that can't hold together.
    """

    def __init__(self, num_pages: int, page_size_tokens: int, shares: Iterable[TenantShare] = ()) -> None:
        if num_pages < 1 or page_size_tokens < 1:
            raise ValueError(f"a pool needs at least one page and one token a page, not {num_pages} x {page_size_tokens}")
        self.num_pages = num_pages
        self.page_size_tokens = page_size_tokens
        self._free = list(range(num_pages - 1, -1, -1))
        self._refs = array("i", bytes(4 * num_pages))
        self._locks = array("i", bytes(4 * num_pages))
        self._leases = array("i", bytes(4 * num_pages))
        self._fill = array("i", bytes(4 * num_pages))
        self._num_locked = 0
        self._num_leased = 0
        self.accounts = Accounts(num_pages, tuple(shares))
        self._owner = array("i", bytes(4 * num_pages))
        """Index of the account that a page is charged to."""

    @property
    def num_free(self) -> int:
        """Pages nobody refers to."""
        return len(self._free)

    @property
    def num_locked(self) -> int:
        """Pages that a sequence or a locked node refers to."""
        return self._num_locked

    @property
    def num_cached(self) -> int:
        """Pages that eviction can free at once."""
        return self.num_pages - len(self._free) - self._num_locked

    @property
    def num_available(self) -> int:
        """Free pages and those that eviction can free."""
        return self.num_pages - self._num_locked

    @property
    def num_leased(self) -> int:
        """Cached pages on a leased path."""
        return self._num_leased

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size_tokens)

    def available_for(self, owner: Owner) -> int:
        """Pages that an owner may allocate now, if need be after evicting: as far as its own limit and others' reserves allow."""
        return min(self.shared_room(owner), self.accounts.get(owner).own_room)

    def shared_room(self, owner: Owner) -> int:
        """`available_for`, the owner's own limit left aside."""
        return self.num_pages - self._num_locked - self.accounts.num_shielded(self.accounts.get(owner))

    def num_references(self, page: int) -> int:
        """Sequences and nodes that refer to a page."""
        return self._refs[page]

    # ---- sequences -------------------------------------------------------------------------------------------

    def allocate(self, count: int, owner: Owner = NOBODY) -> list[int]:
        """Take `count` free pages for one sequence, which holds each alone, and charge them. Raises `OutOfPagesError`."""
        if count > len(self._free):
            raise OutOfPagesError(f"{count} pages asked for, {len(self._free)} of {self.num_pages} are free")
        if count <= 0:
            return []
        pages = self._free[-count:]
        del self._free[-count:]
        account = self.accounts.get(owner)
        for page in pages:
            self._refs[page] = 1
            self._locks[page] = 1
            self._fill[page] = 0
            self._owner[page] = account.index
        self._num_locked += count
        if not account.num_in_use:
            self.accounts.num_busy += 1
        account.num_pages += count
        account.num_locked += count
        self._changed(account)
        self.accounts.grew(account)
        return pages

    def _changed(self, account: Account) -> None:
        if account.reserved_pages:
            self.accounts.changed.add(account)

    def hold(self, pages: Iterable[int]) -> None:
        """One more sequence refers to these pages."""
        self.retain(pages)
        self.lock(pages)

    def release(self, pages: Iterable[int]) -> int:
        """A sequence lets go of these pages; returns how many became free."""
        self.unlock(pages)
        return self.drop(pages)

    def must_copy(self, page: int, offset: int) -> bool:
        """Whether a holder that wants to write from slot `offset` on would overwrite what others may read."""
        return offset < self._fill[page] and self._refs[page] > 1

    def claim(self, page: int, end: int) -> None:
        """A holder is going to write slots up to `end` (exclusive); `must_copy` said that it may."""
        if self._refs[page] == 1 or end > self._fill[page]:
            self._fill[page] = end

    # ---- the tree --------------------------------------------------------------------------------------------

    def retain(self, pages: Iterable[int]) -> None:
        """A tree node refers to these pages. They must not be free."""
        refs = self._refs
        for page in pages:
            assert refs[page] > 0, f"page {page} is free"
            refs[page] += 1

    def drop(self, pages: Iterable[int]) -> int:
        """A tree node lets go of these pages; returns how many became free."""
        refs, num_free, accounts = self._refs, len(self._free), self.accounts.by_index
        for page in pages:
            refs[page] -= 1
            if refs[page] == 0:
                assert self._locks[page] == 0, f"page {page} is locked and has no holder"
                self._free.append(page)
                account = accounts[self._owner[page]]
                account.num_pages -= 1
                self._changed(account)
            assert refs[page] >= 0, f"page {page} let go of twice"
        return len(self._free) - num_free

    def lock(self, pages: Iterable[int]) -> None:
        """Lock pages once more."""
        locks, leases, accounts = self._locks, self._leases, self.accounts.by_index
        for page in pages:
            if locks[page] == 0:
                self._num_locked += 1
                account = accounts[self._owner[page]]
                if leases[page]:
                    self._count_leased(account, -1)
                elif not account.num_in_use:
                    self.accounts.num_busy += 1
                account.num_locked += 1
                self._changed(account)
            locks[page] += 1

    def unlock(self, pages: Iterable[int]) -> None:
        """Undo one `lock`."""
        locks, leases, accounts = self._locks, self._leases, self.accounts.by_index
        for page in pages:
            locks[page] -= 1
            if locks[page] == 0:
                self._num_locked -= 1
                account = accounts[self._owner[page]]
                account.num_locked -= 1
                if leases[page]:
                    self._count_leased(account, 1)
                elif not account.num_in_use:
                    self.accounts.num_busy -= 1
                self._changed(account)
            assert locks[page] >= 0, f"page {page} unlocked twice"

    def lease(self, pages: Iterable[int]) -> None:
        """Pages come to lie on one more leased path."""
        leases, accounts = self._leases, self.accounts.by_index
        for page in pages:
            leases[page] += 1
            if leases[page] == 1 and self._locks[page] == 0:
                account = accounts[self._owner[page]]
                if not account.num_in_use:
                    self.accounts.num_busy += 1
                self._count_leased(account, 1)

    def unlease(self, pages: Iterable[int]) -> None:
        """Undo one `lease`."""
        leases, accounts = self._leases, self.accounts.by_index
        for page in pages:
            leases[page] -= 1
            if leases[page] == 0 and self._locks[page] == 0:
                account = accounts[self._owner[page]]
                self._count_leased(account, -1)
                if not account.num_in_use:
                    self.accounts.num_busy -= 1
            assert leases[page] >= 0, f"the lease of page {page} ended twice"

    def _count_leased(self, account: Account, change: int) -> None:
        self._num_leased += change
        account.num_leased += change
        if not account.num_leased:
            self.accounts.lessees.discard(account)
        elif change > 0:
            self.accounts.lessees.add(account)

    def check(self) -> None:
        """Recount everything. For tests: O(pages)."""
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert set(self._free) == {page for page in range(self.num_pages) if self._refs[page] == 0}, (
            "free list and references differ"
        )
        assert all(0 <= self._locks[page] <= self._refs[page] for page in range(self.num_pages)), "more locks than holders"
        assert self._num_locked == sum(1 for count in self._locks if count), "number of locked pages is off"
        assert min(self.num_free, self.num_cached, self.num_locked) >= 0
        assert self.num_free + self.num_cached + self.num_locked == self.num_pages
        assert self._num_leased == sum(account.num_leased for account in self.accounts.by_index), "leased pages are off"
        self.accounts.check(
            (self._owner[page] for page in range(self.num_pages) if self._refs[page]),
            (self._owner[page] for page in range(self.num_pages) if self._locks[page]),
            (self._owner[page] for page in range(self.num_pages) if self._leases[page] and not self._locks[page]),
        )
        assert all(self._refs[page] for page in range(self.num_pages) if self._leases[page]), "a page under a lease is free"
        assert all(0 <= fill <= self.page_size_tokens for fill in self._fill), "a page is filled beyond its end"
