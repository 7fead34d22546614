"""Whose pages go: shares, leases and public prefixes, one rule at a time."""

from __future__ import annotations

import pytest

from radixserve_runtime.cache.accounts import PUBLIC, PUBLIC_DRAFT, ShareError
from radixserve_runtime.cache.check import check_cache
from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.public import PublicPrefixes
from radixserve_runtime.cache.radix import Lock, RadixCache
from radixserve_runtime.config import TenantShare

A, B, C = ("tenant", "a"), ("tenant", "b"), ("tenant", "c")


def build(num_pages: int = 8, **shares: tuple[float, float]) -> tuple[RadixCache, PagePool]:
    """Pages of one token. Shares are (reserved, maximum)."""
    pool = PagePool(
        num_pages, 1, [TenantShare(name=name, reserved_share=low, max_share=high) for name, (low, high) in shares.items()]
    )
    return RadixCache(pool), pool


def keep(cache: RadixCache, pool: PagePool, owner: tuple[str, str], tokens: list[int]) -> None:
    cache.make_free(len(tokens), owner)
    pages = pool.allocate(len(tokens), owner)
    cache.insert((owner,), tokens, pages)
    pool.release(pages)


def use(cache: RadixCache, pool: PagePool, owner: tuple[str, str], tokens: list[int]) -> Lock:
    """Cached and locked, as by a sequence."""
    keep(cache, pool, owner, tokens)
    return cache.lock(cache.match((owner,), tokens))


def held(cache: RadixCache, owner: tuple[str, str], tokens: list[int]) -> int:
    return cache.match((owner,), tokens).num_tokens


def test_others_take_what_is_over_a_reserve_and_no_more() -> None:
    cache, pool = build(a=(0.5, 1.0))
    keep(cache, pool, A, [1, 2, 3, 4, 5, 6])
    assert pool.available_for(C) == 4
    assert cache.evict(5, C) == 2
    assert held(cache, A, [1, 2, 3, 4, 5, 6]) == 4
    assert cache.evict(1, C) == 0
    assert cache.evict(1, A) == 1
    check_cache(cache, pool)


def test_who_grows_over_its_reserve_again_can_lose_it_again() -> None:
    cache, pool = build(a=(0.5, 1.0))
    keep(cache, pool, A, [1, 2, 3])
    assert cache.evict(1, C) == 0
    keep(cache, pool, A, [4, 5, 6])
    assert cache.evict(3, C) == 2
    assert pool.accounts.get(A).num_pages == 4
    check_cache(cache, pool)


def test_a_reserve_shields_only_what_is_not_locked() -> None:
    cache, pool = build(a=(0.5, 1.0))
    keep(cache, pool, A, [1, 2, 3, 4, 5])
    lock = cache.lock(cache.match((A,), [1, 2, 3]))
    assert pool.available_for(C) == 4
    assert cache.evict(9, C) == 1
    cache.unlock(lock)
    assert pool.available_for(C) == 4
    assert pool.available_for(A) == 8


def test_the_least_recently_used_of_all_owners_goes_first() -> None:
    cache, pool = build(12)
    for number, owner in enumerate([A, B, C, A, B, C]):
        keep(cache, pool, owner, [number, number])
    gone = []
    for _ in range(6):
        before = {owner: pool.accounts.get(owner).num_pages for owner in (A, B, C)}
        assert cache.evict(2) == 2
        gone.append(next(owner for owner in (A, B, C) if pool.accounts.get(owner).num_pages < before[owner]))
    assert gone == [A, B, C, A, B, C]


def test_a_maximum_is_kept_by_evicting_ones_own() -> None:
    cache, pool = build(b=(0.0, 0.5))
    keep(cache, pool, C, [9])
    keep(cache, pool, B, [1, 2, 3])
    keep(cache, pool, B, [4, 5])
    assert pool.accounts.get(B).num_pages == 4
    assert held(cache, C, [9]) == 1
    lock = cache.lock(cache.match((B,), [1, 2]))
    assert pool.available_for(B) == 2
    cache.unlock(lock)


def test_who_was_forced_over_its_maximum_goes_first() -> None:
    cache, pool = build(b=(0.0, 0.25))
    keep(cache, pool, C, [9, 9])
    pages = pool.allocate(4, B)
    cache.insert((B,), [1, 2, 3, 4], pages)
    pool.release(pages)
    assert cache.evict(2, C) == 2
    assert held(cache, C, [9, 9]) == 2
    assert cache.evict(1, C) == 1
    assert held(cache, C, [9, 9]) == 1


def test_what_an_owner_can_have_at_most() -> None:
    _, pool = build(20, a=(0.5, 0.75), b=(0.25, 1.0))
    assert [pool.accounts.capacity(owner) for owner in (A, B, C)] == [15, 10, 5]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([("a", 0.6, 1.0), ("b", 0.6, 1.0)], "add up to more"),
        ([("a", 0.6, 0.5)], "reserved_share <= max_share"),
        ([("a", 0.0, 0.0)], "max_share > 0"),
        ([("a", 0.1, 1.0), ("a", 0.1, 1.0)], "two shares"),
    ],
)
def test_shares_that_cannot_hold_are_refused(shares: list[tuple[str, float, float]], message: str) -> None:
    with pytest.raises(ShareError, match=message):
        PagePool(10, 1, [TenantShare(name=name, reserved_share=low, max_share=high) for name, low, high in shares])


def test_a_lease_goes_after_everything_else_and_before_nothing_at_all() -> None:
    cache, pool = build()
    keep(cache, pool, A, [1, 1])
    assert cache.leases.take(1, (A,), [1, 1], 10.0) == 2
    keep(cache, pool, B, [2, 2])
    keep(cache, pool, A, [3, 3])
    assert cache.evict(4) == 4
    assert (held(cache, A, [1, 1]), cache.leases.take_lost()) == (2, [])
    assert cache.evict(1) == 1
    assert cache.leases.take_lost() == [1]
    assert held(cache, A, [1, 1]) == 1


def test_a_broken_lease_is_used_up_before_another_is_broken() -> None:
    cache, pool = build()
    for key in (1, 2):
        keep(cache, pool, A, [key] * 3)
        cache.leases.take(key, (A,), [key] * 3, 10.0)
    assert cache.evict(1) == 1
    keep(cache, pool, B, [9])
    cache.evict(3)
    assert cache.leases.take_lost() == [1]
    assert held(cache, A, [2, 2, 2]) == 3


def test_what_is_left_of_a_broken_lease_goes_after_all_that_is_under_none() -> None:
    cache, pool = build()
    keep(cache, pool, A, [1, 1, 1])
    cache.leases.take(1, (A,), [1, 1, 1], 10.0)
    keep(cache, pool, A, [2, 2, 2, 2, 2])
    assert cache.evict(6) == 6
    assert (held(cache, A, [1, 1, 1]), cache.leases.take_lost()) == (2, [1])
    check_cache(cache, pool)
    keep(cache, pool, B, [3, 3])
    assert cache.evict(2) == 2
    assert (held(cache, A, [1, 1, 1]), held(cache, B, [3, 3])) == (2, 0)
    assert (pool.accounts.get(A).num_leased, cache.leases.num_told) == (2, 0)
    assert not cache.leases.release(1)
    assert pool.accounts.get(A).num_leased == 0
    check_cache(cache, pool)


def test_the_rest_of_a_broken_lease_is_handed_to_what_comes_before_it() -> None:
    cache, pool = build()
    keep(cache, pool, A, [1, 1])
    keep(cache, pool, A, [1, 1, 5, 5])
    for key, tokens in ((1, [1, 1]), (2, [1, 1, 5, 5])):
        cache.leases.take(key, (A,), tokens, 10.0 + key)
    assert cache.evict(2) == 2
    check_cache(cache, pool)
    assert cache.leases.take_lost() == [2]
    assert held(cache, A, [1, 1]) == 2
    cache.leases.expire(20.0)
    assert cache.leases.take_lost() == [1]
    assert (pool.accounts.get(A).num_leased, cache.evict(2)) == (0, 2)
    check_cache(cache, pool)


def test_leases_squeeze_nobody_out_of_the_pool() -> None:
    """Who keeps more than an equal part by leases gives way to those who use pages and have less than half of theirs."""
    cache, pool = build(16)
    for key in range(8):
        keep(cache, pool, A, [key, key])
        cache.leases.take(key, (A,), [key, key], 3600.0 + key)
    lock = use(cache, pool, B, [20])
    keep(cache, pool, B, [21, 21])
    keep(cache, pool, B, [22])
    keep(cache, pool, B, [23])
    assert pool.accounts.get(B).num_pages == 5
    assert cache.leases.take_lost() == [7, 6, 5]
    keep(cache, pool, B, [24])  # beyond half of an equal part its own goes first
    assert pool.accounts.get(B).num_pages == 5
    assert (held(cache, B, [21, 21]), held(cache, B, [22])) == (1, 1)
    assert cache.leases.take_lost() == []
    cache.unlock(lock)
    check_cache(cache, pool)


def test_who_leases_too_much_takes_from_itself() -> None:
    cache, pool = build(16)
    for key in range(6):
        keep(cache, pool, A, [key, key])
        cache.leases.take(key, (A,), [key, key], 3600.0 + key)
    lock = use(cache, pool, B, [20, 20])
    keep(cache, pool, B, [21, 21])
    keep(cache, pool, A, [30, 30])
    assert held(cache, B, [21, 21]) == 2
    assert cache.leases.take_lost() == [5]
    cache.unlock(lock)
    check_cache(cache, pool)


def test_alone_a_tenant_may_lease_all_there_is() -> None:
    cache, pool = build()
    for key in range(4):
        keep(cache, pool, A, [key, key])
        cache.leases.take(key, (A,), [key, key], 3600.0)
    keep(cache, pool, C, [9])  # has pages and uses none
    assert (pool.accounts.get(A).num_leased, cache.leases.take_lost()) == (7, [0])
    keep(cache, pool, C, [8])
    assert cache.leases.take_lost() == []
    assert held(cache, C, [9]) == 0


def test_a_released_lease_goes_by_its_last_use() -> None:
    cache, pool = build()
    keep(cache, pool, A, [1, 1])
    cache.leases.take(1, (A,), [1, 1], 10.0)
    keep(cache, pool, A, [2, 2])
    keep(cache, pool, B, [3, 3])
    assert cache.leases.release(1)
    assert not cache.leases.release(1)
    cache.evict(2)
    assert (held(cache, A, [1, 1]), held(cache, A, [2, 2]), held(cache, B, [3, 3])) == (0, 2, 2)
    assert cache.leases.take_lost() == []
    check_cache(cache, pool)


def test_what_continues_a_leased_path_goes_before_it() -> None:
    cache, pool = build()
    keep(cache, pool, A, [1, 1])
    cache.leases.take(1, (A,), [1, 1], 10.0)
    lock = cache.lock(cache.match((A,), [1, 1]))
    pages = cache.match((A,), [1, 1]).pages
    pool.hold(pages)
    own = [*pages, *pool.allocate(2, A)]
    cache.extend(lock, [1, 1, 5, 5], own)
    cache.unlock(lock)
    pool.release(own)
    assert cache.evict(2) == 2
    assert (held(cache, A, [1, 1, 5, 5]), cache.leases.take_lost()) == (2, [])
    check_cache(cache, pool)


def test_two_branches_may_lease_one_path() -> None:
    cache, pool = build()
    keep(cache, pool, A, [1, 1])
    for key in (1, 2):
        cache.leases.take(key, (A,), [1, 1], 10.0)
    cache.leases.release(1)
    keep(cache, pool, B, [2, 2])
    cache.evict(2)
    assert held(cache, A, [1, 1]) == 2
    cache.evict(1)
    assert cache.leases.take_lost() == [2]


def test_a_lease_does_not_break_a_reserve() -> None:
    cache, pool = build(a=(0.25, 1.0))
    keep(cache, pool, A, [1, 1])
    keep(cache, pool, B, [2, 2])
    cache.leases.take(2, (B,), [2, 2], 10.0)
    assert cache.evict(3, C) == 2
    assert (held(cache, A, [1, 1]), held(cache, B, [2, 2])) == (2, 0)


def test_many_short_leases_are_not_remembered() -> None:
    cache, _ = build()
    for key in range(1000):
        cache.leases.take(key % 3, (A,), [1], 1e9 + key)
        cache.leases.expire(float(key))
    assert len(cache.leases) == 3
    assert len(cache.leases._ends) < 100


def test_a_public_prefix_is_seen_by_all_and_its_draft_by_none() -> None:
    cache, pool = build(16)
    public = PublicPrefixes(cache, pool)
    public.set_aside([1, 2, 3])
    pages = pool.allocate(3, PUBLIC_DRAFT[0])
    cache.insert(PUBLIC_DRAFT, [1, 2, 3], pages)
    assert held(cache, A, [1, 2, 3]) == 0
    public.pin([1, 2, 3], pages)
    pool.release(pages)
    for namespace in ((A,), (A, ("salt", "x")), (("salt", "a"),), ()):
        assert cache.match(namespace, [1, 2, 3, 4]).num_tokens == 3
    assert cache.reset() == 0
    assert cache.match(PUBLIC, [1, 2, 3]).pages == pages
    assert pool.num_locked == 3
    check_cache(cache, pool)
