"""Rules of the pool and the tree that one example shows."""

from __future__ import annotations

import pytest

from radixserve_runtime.cache.check import check_cache
from radixserve_runtime.cache.pages import OutOfPagesError, PagePool
from radixserve_runtime.cache.radix import RadixCache, StaleMatchError

A, B = (("tenant", "x"),), (("salt", "x"),)


def publish(cache: RadixCache, pool: PagePool, tokens: list[int], namespace: tuple[tuple[str, str], ...] = A) -> list[int]:
    pages = pool.allocate(pool.pages_for(len(tokens)))
    cache.insert(namespace, tokens, pages)
    pool.release(pages)
    return pages


@pytest.mark.parametrize("page_size", [1, 16])
def test_reuse_is_exact_to_the_token(page_size: int) -> None:
    pool = PagePool(64, page_size)
    cache = RadixCache(pool)
    pages = publish(cache, pool, list(range(20)))
    match = cache.match(A, [*range(19), 99])
    assert match.num_tokens == 19
    assert match.pages == pages[: pool.pages_for(19)]
    assert cache.match(A, list(range(20)), 7).num_tokens == 7
    assert cache.match(A, [5]).num_tokens == 0


def test_a_salt_equal_to_another_kind_of_name_shares_nothing() -> None:
    pool = PagePool(8, 4)
    cache = RadixCache(pool)
    publish(cache, pool, [1, 2, 3, 4], A)
    assert cache.match(B, [1, 2, 3, 4]).num_tokens == 0
    assert cache.match((), [1, 2, 3, 4]).num_tokens == 0


def test_two_first_comers_of_a_namespace_share_one_tree() -> None:
    pool = PagePool(8, 4)
    cache = RadixCache(pool)
    first, second = cache.match(A, [1, 2]), cache.match(A, [1, 3])
    locks = [cache.lock(first), cache.lock(second)]
    for lock, tokens in zip(locks, ([1, 2], [1, 3]), strict=True):
        pages = pool.allocate(1)
        cache.extend(lock, tokens, pages)
        pool.release(pages)
    assert cache.match(A, [1, 2]).num_tokens == 2
    assert cache.match(A, [1, 3]).num_tokens == 2
    for lock in locks:
        cache.unlock(lock)
    check_cache(cache, pool)


def test_the_least_recently_used_end_goes_first() -> None:
    pool = PagePool(8, 2)
    cache = RadixCache(pool)
    publish(cache, pool, [1, 1, 2, 2])
    publish(cache, pool, [1, 1, 3, 3])
    publish(cache, pool, [9, 9, 8, 8])
    cache.unlock(cache.lock(cache.match(A, [1, 1, 2, 2])))
    assert cache.evict(1) == 1
    assert cache.match(A, [1, 1, 3, 3]).num_tokens == 2
    assert cache.evict(1) == 1
    assert cache.match(A, [9, 9, 8, 8]).num_tokens == 2
    assert cache.evict(1) == 1
    assert cache.match(A, [9, 9]).num_tokens == 0
    assert cache.match(A, [1, 1, 2, 2]).num_tokens == 4
    assert cache.num_evicted_pages == 3
    check_cache(cache, pool)


def test_the_order_of_eviction_can_be_another() -> None:
    pool = PagePool(8, 2)
    cache = RadixCache(pool, eviction_key=lambda node: (-node.last_used,))
    publish(cache, pool, [1, 1])
    publish(cache, pool, [2, 2])
    cache.evict(1)
    assert cache.match(A, [1, 1]).num_tokens == 2
    assert cache.match(A, [2, 2]).num_tokens == 0


def test_a_locked_path_is_never_evicted() -> None:
    pool = PagePool(4, 2)
    cache = RadixCache(pool)
    publish(cache, pool, [1, 1, 2, 2, 3, 3])
    lock = cache.lock(cache.match(A, [1, 1, 2]))
    assert (pool.num_free, pool.num_cached, pool.num_locked) == (1, 1, 2)
    assert cache.reset() == 1
    assert cache.match(A, [1, 1, 2, 2, 3, 3]).num_tokens == 3
    cache.unlock(lock)
    assert (pool.num_free, pool.num_cached, pool.num_locked) == (2, 2, 0)
    assert cache.reset() == 2
    assert cache.num_nodes == 0


def test_a_match_that_was_evicted_is_refused() -> None:
    pool = PagePool(4, 2)
    cache = RadixCache(pool)
    publish(cache, pool, [1, 1, 2, 2])
    whole, half = cache.match(A, [1, 1, 2, 2]), cache.match(A, [1, 1])
    cache.evict(1)
    with pytest.raises(StaleMatchError, match="match again"):
        cache.lock(whole)
    cache.unlock(cache.lock(half))
    cache.reset()
    with pytest.raises(StaleMatchError):
        cache.lock(half)


def test_a_prompt_published_chunk_by_chunk_is_one_node() -> None:
    pool = PagePool(16, 4)
    cache = RadixCache(pool)
    tokens = list(range(50))
    pages = pool.allocate(13)
    lock = cache.lock(cache.match(A, tokens))
    assert [cache.extend(lock, tokens, pages, end) for end in (3, 17, 18, 50)] == [3, 14, 1, 32]
    assert cache.num_nodes == 1
    assert cache.match(A, tokens).pages == pages
    cache.unlock(lock)
    pool.release(pages)
    check_cache(cache, pool)


def test_what_was_computed_twice_is_kept_once() -> None:
    pool = PagePool(8, 2)
    cache = RadixCache(pool)
    first = publish(cache, pool, [1, 2, 3, 4])
    publish(cache, pool, [1, 2, 3, 4, 5])
    assert cache.match(A, [1, 2, 3, 4]).pages == first
    assert pool.num_cached == 3


def test_the_owner_appends_in_place_and_a_stranger_copies() -> None:
    pool = PagePool(4, 4)
    cache = RadixCache(pool)
    pages = pool.allocate(1)
    pool.claim(pages[0], 2)
    cache.insert(A, [1, 2], pages)
    assert not pool.must_copy(pages[0], 2)
    pool.claim(pages[0], 3)
    assert pool.must_copy(pages[0], 2)
    assert not pool.must_copy(pages[0], 3)
    pool.release(pages)


def test_a_disabled_cache_keeps_nothing() -> None:
    pool = PagePool(4, 2)
    cache = RadixCache(pool, enabled=False)
    publish(cache, pool, [1, 2, 3])
    assert cache.match(A, [1, 2, 3]).num_tokens == 0
    assert pool.num_free == 4


def test_asking_for_more_than_is_free_is_an_error() -> None:
    pool = PagePool(2, 2)
    with pytest.raises(OutOfPagesError, match="3 pages asked for, 2 of 2 are free"):
        pool.allocate(3)
    with pytest.raises(ValueError, match="at least one page"):
        PagePool(0, 16)


def test_namespaces_that_hold_nothing_are_forgotten() -> None:
    pool = PagePool(4, 2)
    cache = RadixCache(pool)
    for salt in range(100):
        namespace = (("salt", str(salt)),)
        publish(cache, pool, [1, 2], namespace)
        cache.unlock(cache.lock(cache.match((("salt", f"empty {salt}"),), [1])))
        cache.reset()
    assert not cache._tree.roots
