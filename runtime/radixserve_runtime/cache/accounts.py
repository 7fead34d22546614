"""Whose pages: a tenant's part of the pool, counted as pages come and go.

A page is charged to the owner of the sequence that allocated it, until it is free again: so to the tenant of the first
namespace that holds it. Pages of public prefixes are charged to the operator.

Two shares bound an owner. What others allocate never takes its cached pages below `reserved_pages` (pages beside
those that a running sequence locks count first); reserved pages that it doesn't use may be borrowed. What it allocates
itself never takes it beyond `max_pages`: its own cached pages go first, and then it waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.config import TenantShare

#: Typed keys such as (("tenant", "a"), ("salt", "x")): no salt can equal another kind of name. The first says who owns it.
Namespace: TypeAlias = tuple[tuple[str, str], ...]

#: A kind of name and a name: whose pages they are.
Owner: TypeAlias = tuple[str, str]

NOBODY: Owner = ("tenant", "")
OPERATOR: Owner = ("operator", "")

#: Prompts that the operator declared and that are computed: every tenant may share them. They are pinned.
PUBLIC: Namespace = (OPERATOR, ("public", ""))
#: Where such a prompt is computed, until it is complete. Nobody else sees it.
PUBLIC_DRAFT: Namespace = (OPERATOR, ("draft", ""))


class ShareError(ValueError):
    """Shares of the pool that can't hold together. The text says which and why."""


def owner_of(namespace: Namespace) -> Owner:
    """Who pays for what this namespace holds."""
    return namespace[0] if namespace else NOBODY


class Account:
    """The pages of one owner. `num_pages`, `num_locked` and `num_leased` are written by the pool."""

    __slots__ = (
        "index",
        "max_pages",
        "num_leased",
        "num_leased_paths",
        "num_locked",
        "num_pages",
        "owner",
        "parked",
        "reserved_pages",
        "shielded",
    )

    def __init__(self, index: int, owner: Owner, reserved_pages: int, max_pages: int) -> None:
        self.index = index
        self.owner = owner
        self.reserved_pages = reserved_pages
        self.max_pages = max_pages
        self.num_pages = 0
        """Pages charged to it, cached and locked."""
        self.num_locked = 0
        self.num_leased = 0
        """Its cached pages that lie on a leased path."""
        self.num_leased_paths = 0
        """Ends of such paths, counted by the tree."""
        self.shielded = 0
        """Cached pages that others can't take, when they were last counted."""
        self.parked = False
        """Within its reserved share, and so left out of the order of eviction until it grows."""

    @property
    def num_cached(self) -> int:
        """Its pages that eviction can free."""
        return self.num_pages - self.num_locked

    @property
    def num_in_use(self) -> int:
        """Its pages that a sequence holds or a lease keeps."""
        return self.num_locked + self.num_leased

    @property
    def own_room(self) -> int:
        """Pages that it may still lock within its own limit."""
        return self.max_pages - self.num_locked

    @property
    def num_over_reserved(self) -> int:
        """Pages that others may take, as far as they are cached; not above 0 within its reserved share."""
        return self.num_pages - self.reserved_pages

    def count_shielded(self) -> int:
        """Cached pages that others can't take."""
        return min(self.num_cached, max(0, self.reserved_pages - self.num_locked))


class Accounts:
    """All owners that ever had a page. `by_index` and `changed` are for the pool, which counts."""

    def __init__(self, num_pages: int, shares: Iterable[TenantShare] = ()) -> None:
        self._num_pages = num_pages
        self._by_owner: dict[Owner, Account] = {}
        self.by_index: list[Account] = []
        self.changed: set[Account] = set()
        """Accounts with a reserved share whose pages have changed since `num_shielded` was last asked for."""
        self.grown: list[Account] = []
        """Accounts that were parked and are over their reserved share now. The order of eviction takes them in again."""
        self.num_set_aside = 0
        """Pages promised to public prefixes, computed or not."""
        self.num_busy = 0
        """Owners with pages in use, counted by the pool."""
        self.lessees: set[Account] = set()
        """Owners with leased pages."""
        self._num_shielded = 0
        self._over: set[Account] = set()
        for share in shares:
            self._add_share(share)
        self.num_reserved = sum(account.reserved_pages for account in self.by_index)
        if self.num_reserved > num_pages:
            raise ShareError("the reserved shares of all tenants add up to more than the pool: lower some of them")

    def _add_share(self, share: TenantShare) -> None:
        if not 0.0 <= share.reserved_share <= share.max_share <= 1.0 or not share.max_share:
            raise ShareError(
                f"tenant {share.name!r}: shares must hold 0 <= reserved_share <= max_share <= 1 and max_share > 0, "
                f"not {share.reserved_share:g} and {share.max_share:g}"
            )
        owner = ("tenant", share.name)
        if owner in self._by_owner:
            raise ShareError(f"tenant {share.name!r} has two shares")
        most = max(1, int(share.max_share * self._num_pages))
        self._open(owner, min(most, int(share.reserved_share * self._num_pages)), most)

    def _open(self, owner: Owner, reserved_pages: int, max_pages: int) -> Account:
        account = self._by_owner[owner] = Account(len(self.by_index), owner, reserved_pages, max_pages)
        self.by_index.append(account)
        return account

    def get(self, owner: Owner) -> Account:
        """The account of an owner, opened if need be; without a share of its own it reserves nothing and may have all."""
        return self._by_owner.get(owner) or self._open(owner, 0, self._num_pages)

    def grew(self, account: Account) -> None:
        """The pool charged pages to an account."""
        if account.parked and account.num_over_reserved > 0:
            account.parked = False
            self.grown.append(account)
        if account.num_pages > account.max_pages:
            self._over.add(account)

    def over_limit(self) -> list[Account]:
        """Owners that have more than their own limit, whoever is most over first. There are none unless pages were forced."""
        if not self._over:
            return []
        self._over = {account for account in self._over if account.num_pages > account.max_pages}
        return sorted(self._over, key=lambda account: account.max_pages - account.num_pages)

    def lease_share(self, account: Account) -> int:
        """Pages that an owner may keep by leases while others want them: an equal part among the tenants with pages in use, and never less than its reserve."""
        operator = self._by_owner.get(OPERATOR)
        num_tenants = self.num_busy - bool(operator and operator.num_in_use)
        return max(account.reserved_pages, min(account.max_pages, self._num_pages // max(1, num_tenants)))

    def over_leased(self) -> Account | None:
        """Of the owners that have more leased than their share, whoever is most over it."""
        if self.num_busy < 2:
            return None
        first = max(
            self.lessees, key=lambda account: (account.num_leased - self.lease_share(account), -account.index), default=None
        )
        return first if first is not None and first.num_leased > self.lease_share(first) else None

    def num_shielded(self, taker: Account) -> int:
        """Cached pages that are not `taker`'s to evict, as they are within others' reserved shares."""
        while self.changed:
            account = self.changed.pop()
            now = account.count_shielded()
            self._num_shielded += now - account.shielded
            account.shielded = now
        return self._num_shielded - taker.shielded

    def capacity(self, owner: Owner) -> int:
        """Most pages that an owner can have, when nobody else runs: what is not others' by reserve or pinned, up to its own limit."""
        account = self.get(owner)
        return min(account.max_pages, self._num_pages - self.num_set_aside - self.num_reserved + account.reserved_pages)

    def check(self, charged: Iterable[int], locked: Iterable[int], leased: Iterable[int]) -> None:
        """Compare with a recount: the account's index of each page in use, of each locked page, and of each cached one under a lease. For tests."""
        pages, locks, leases = ([0] * len(self.by_index) for _ in range(3))
        for index in charged:
            pages[index] += 1
        for index in locked:
            locks[index] += 1
        for index in leased:
            leases[index] += 1
        for account in self.by_index:
            assert account.num_pages == pages[account.index], f"pages of {account.owner} are off"
            assert account.num_locked == locks[account.index], f"locked pages of {account.owner} are off"
            assert account.num_leased == leases[account.index], f"leased pages of {account.owner} are off"
        assert self.num_busy == sum(account.num_in_use > 0 for account in self.by_index), "owners with pages in use are off"
        assert self.lessees == {account for account in self.by_index if account.num_leased}, "owners with leases are off"
        nobody = Account(-1, NOBODY, 0, 0)
        assert self.num_shielded(nobody) == sum(account.count_shielded() for account in self.by_index), "shielded pages are off"
