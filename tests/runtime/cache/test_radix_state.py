"""The radix cache and the pool against a model in which every slot of every page knows which prefix it holds, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixserve_runtime.cache.accounts import OPERATOR, PUBLIC, PUBLIC_DRAFT, owner_of
from radixserve_runtime.cache.check import check_cache
from radixserve_runtime.cache.node import token_run
from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.public import PublicPrefixError, PublicPrefixes
from radixserve_runtime.cache.radix import Lock, RadixCache
from radixserve_runtime.cache.tree import walk
from radixserve_runtime.config import TenantShare

NUM_PAGES = 24
A, B = ("tenant", "a"), ("tenant", "b")
NAMESPACES: tuple[Any, ...] = ((A,), (A, ("salt", "b")), (B,), (("salt", "a"),), PUBLIC_DRAFT)
SHARES = (
    (),
    (TenantShare(name="a", reserved_share=0.3), TenantShare(name="b", reserved_share=0.2, max_share=0.4)),
    (TenantShare(name="a", max_share=0.25), TenantShare(name="b", reserved_share=0.5)),
)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Writer:
    """What a sequence does: holds pages, some of them shared, and a lock."""

    def __init__(self, namespace: Any, tokens: list[int], pages: list[int], lock: Lock, computed: int) -> None:
        self.namespace, self.tokens, self.pages, self.lock, self.computed = namespace, tokens, pages, lock, computed


class RadixMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4]), shares=st.sampled_from(SHARES))
    def start(self, page_size: int, shares: tuple[TenantShare, ...]) -> None:
        self.page_size = page_size
        self.pool = PagePool(NUM_PAGES, page_size, shares)
        self.cache = RadixCache(self.pool)
        self.public = PublicPrefixes(self.cache, self.pool)
        self.pinned: list[list[int]] = []
        self.now_s = 0.0
        self.leases: dict[int, float] = {}
        self.content: list[list[Any]] = [[None] * page_size for _ in range(NUM_PAGES)]
        self.published: set[tuple[Any, tuple[int, ...]]] = set()
        self.writers: list[Writer] = []

    def slot(self, pages: list[int], position: int) -> Any:
        return self.content[pages[position // self.page_size]][position % self.page_size]

    def expect(self, namespace: Any, tokens: list[int], pages: list[int], count: int) -> None:
        """Every slot holds the right prefix, and its own namespace or the operator computed it."""
        for position in range(count):
            prefix = tuple(tokens[: position + 1])
            owner, held = self.slot(pages, position)
            assert held == prefix
            assert owner == namespace or (owner == PUBLIC_DRAFT and (PUBLIC, prefix) in self.published)

    def longest_published(self, namespace: Any, tokens: list[int]) -> int:
        return max((n for n in range(len(tokens) + 1) if (namespace, tuple(tokens[:n])) in self.published), default=0)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), more=TOKENS, limit=st.sampled_from([3, 5, 100, 100]))
    def arrive(self, data: Any, namespace: Any, more: list[int], limit: int) -> None:
        """A prompt that continues some known prefix: matched, locked, computed to its end."""
        known = sorted({tokens for where, tokens in self.published if where in (namespace, PUBLIC)} | {()})
        tokens = [*data.draw(st.sampled_from(known)), *more][:14]
        match = self.cache.match(namespace, tokens, limit)
        published = max(self.longest_published(namespace, tokens), self.longest_published(PUBLIC, tokens))
        assert match.num_tokens <= min(limit, len(tokens), published)
        assert match.num_tokens >= min(limit, self.longest_published(PUBLIC, tokens))
        self.expect(namespace, tokens, match.pages, match.num_tokens)
        if len(self.writers) == 4:
            return
        writer = Writer(namespace, tokens[: match.num_tokens], match.pages, self.cache.lock(match), match.num_tokens)
        self.pool.hold(writer.pages)
        self.writers.append(writer)
        self.compute(writer, tokens[match.num_tokens :])

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), more=TOKENS)
    def write(self, data: Any, more: list[int]) -> None:
        self.compute(data.draw(st.sampled_from(self.writers)), more)

    def compute(self, writer: Writer, more: list[int]) -> None:
        """A sequence computes more tokens, copying a page first where it must."""
        for token in more:
            index, offset = divmod(writer.computed, self.page_size)
            needs_copy = index < len(writer.pages) and self.pool.must_copy(writer.pages[index], offset)
            if needs_copy or index == len(writer.pages):
                owner = owner_of(writer.namespace)
                if self.pool.available_for(owner) < 1:
                    return
                self.make_free(1, owner)
                (page,) = self.pool.allocate(1, owner)
                if needs_copy:
                    self.content[page][:offset] = self.content[writer.pages[index]][:offset]
                    self.pool.release([writer.pages[index]])
                    writer.pages[index] = page
                else:
                    writer.pages.append(page)
            self.pool.claim(writer.pages[index], offset + 1)
            writer.tokens = [*writer.tokens, token]
            self.content[writer.pages[index]][offset] = (writer.namespace, tuple(writer.tokens))
            writer.computed += 1

    def make_free(self, count: int, owner: Any) -> None:
        """What is available can be had, and nobody else falls below what it has reserved."""
        accounts = self.pool.accounts
        others = [(account, account.num_pages) for account in accounts.by_index if account.owner != owner]
        self.cache.make_free(count, owner)
        assert self.pool.num_free >= count
        account = accounts.get(owner)
        assert account.num_pages + count <= account.max_pages
        for other, before in others:
            assert other.num_pages >= min(before, other.reserved_pages)

    @rule(data=st.data(), owner=st.sampled_from([A, B, ("salt", "a")]))
    def grab(self, data: Any, owner: Any) -> None:
        """Many pages at once, and given back."""
        available = self.pool.available_for(owner)
        if available > 0:
            count = data.draw(st.integers(1, available))
            self.make_free(count, owner)
            self.pool.release(self.pool.allocate(count, owner))

    @rule(data=st.data(), more=TOKENS)
    def declare(self, data: Any, more: list[int]) -> None:
        """The operator has a prompt computed and pinned."""
        tokens = [*data.draw(st.sampled_from([[], *self.pinned])), *more][:12]
        if self.public.is_pinned(tokens):
            return
        try:
            num_pages = self.public.set_aside(tokens)
        except PublicPrefixError:
            return
        match = self.cache.match(PUBLIC_DRAFT, tokens, len(tokens) - 1)
        writer = Writer(PUBLIC_DRAFT, tokens[: match.num_tokens], match.pages, self.cache.lock(match), match.num_tokens)
        self.pool.hold(writer.pages)
        self.compute(writer, tokens[match.num_tokens :])
        if writer.computed == len(tokens):
            self.public.pin(tokens, writer.pages)
            self.pinned.append(tokens)
            self.published |= {(PUBLIC, tuple(tokens[:n])) for n in range(1, len(tokens) + 1)}
        else:
            self.public.give_back(num_pages)
        self.cache.unlock(writer.lock)
        self.pool.release(writer.pages)

    @rule(data=st.data(), key=st.integers(0, 5), namespace=st.sampled_from(NAMESPACES), more=TOKENS, ttl_s=st.integers(1, 9))
    def lease(self, data: Any, key: int, namespace: Any, more: list[int], ttl_s: int) -> None:
        known = sorted({tokens for where, tokens in self.published if where == namespace} | {()})
        tokens = [*data.draw(st.sampled_from(known)), *more]
        seen = self.cache.match(namespace, tokens).num_tokens
        assert self.cache.leases.take(key, namespace, tokens, self.now_s + ttl_s) == seen
        self.leases[key] = self.now_s + ttl_s

    @rule(key=st.integers(0, 5))
    def release(self, key: int) -> None:
        assert self.cache.leases.release(key) == (self.leases.pop(key, None) is not None)

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.forget_lost()
        self.now_s += seconds
        self.cache.leases.expire(self.now_s)
        over = {key for key, until_s in self.leases.items() if until_s <= self.now_s}
        assert set(self.cache.leases.take_lost()) == over
        for key in over:
            del self.leases[key]

    def forget_lost(self) -> list[int]:
        """Leases that eviction ended."""
        lost = self.cache.leases.take_lost()
        for key in lost:
            del self.leases[key]
        return lost

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def publish(self, data: Any) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        version = self.cache.version
        root = self.cache._tree.root(writer.namespace)
        before = walk(root, token_run(writer.tokens), writer.computed)[1]
        if writer.computed <= writer.lock.num_tokens:
            before = writer.computed  # all of it is known, be it as a public prefix
        new = self.cache.extend(writer.lock, writer.tokens, writer.pages, writer.computed)
        assert new == writer.computed - min(before, writer.computed)
        assert self.cache.version == version + (new > 0)
        if new:
            for n in range(1, writer.computed + 1):
                self.published.add((writer.namespace, tuple(writer.tokens[:n])))
        assert self.cache.match(writer.namespace, writer.tokens).num_tokens == writer.computed

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        self.writers.remove(writer)
        self.cache.unlock(writer.lock)
        self.pool.release(writer.pages)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), keep=st.integers(0, 14))
    def truncate(self, data: Any, keep: int) -> None:
        """A sequence forgets its last tokens; the tree keeps them."""
        writer = data.draw(st.sampled_from(self.writers))
        keep = min(keep, writer.computed)
        writer.tokens, writer.computed = writer.tokens[:keep], keep
        num_pages = self.pool.pages_for(keep)
        self.pool.release(writer.pages[num_pages:])
        del writer.pages[num_pages:]
        if writer.lock.num_tokens > keep:
            lock = self.cache.lock(self.cache.match(writer.namespace, writer.tokens))
            assert lock.num_tokens == keep
            self.cache.unlock(writer.lock)
            writer.lock = lock

    @rule(num_pages=st.integers(1, 3))
    def evict(self, num_pages: int) -> None:
        for _ in range(num_pages - 1):
            self.forget_lost()
            unleased = [node for node in self.cache.nodes() if node.is_evictable and not node.leases]
            self.cache.evict(1)
            # One that ends amid a page may go without a page being free for it: the page is also what is leased before it.
            left = [node for node in self.cache.nodes() if any(node is one for one in unleased)]
            assert not (left and self.forget_lost()), "a lease was lost while there was something without one"
        free, cached = self.pool.num_free, self.pool.num_cached
        freed = self.cache.evict(num_pages)
        assert freed == min(num_pages, cached)
        assert self.pool.num_free == free + freed

    @precondition(lambda self: self.cache.num_nodes > 6)
    @rule()
    def reset(self) -> None:
        self.cache.reset()
        assert not self.forget_lost()
        assert not any(node.is_evictable and not node.leases for node in self.cache.nodes())
        if not self.leases:
            assert self.pool.num_cached == 0

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        check_cache(self.cache, self.pool)
        self.forget_lost()
        assert len(self.cache.leases) == len(self.leases)
        held = {page for writer in self.writers for page in writer.pages}
        for node in self.cache.nodes():
            if node.locks:
                held.update(node.pages)
        assert self.pool.num_locked == len(held)
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_locked == NUM_PAGES

    @invariant()
    def cached_pages_have_one_owner(self) -> None:
        """What an owner's tree has alone is charged to that owner; only what is locked may be shared with others."""
        if not hasattr(self, "cache"):
            return
        accounts = self.pool.accounts
        for node in self.cache.nodes():
            assert node.root is not None
            for page in node.pages:
                charged = accounts.by_index[self.pool._owner[page]]
                assert charged is node.root.account or (charged.owner == OPERATOR and self.pool._locks[page])
        assert all(account.num_pages <= account.max_pages for account in accounts.by_index)

    @invariant()
    def public_pages_are_kept_once(self) -> None:
        for tokens in getattr(self, "pinned", []):
            match = self.cache.match(PUBLIC, tokens)
            assert match.num_tokens == len(tokens)
            self.expect(PUBLIC_DRAFT, tokens, match.pages, len(tokens))
            for namespace in NAMESPACES:
                own = self.cache.match(namespace, tokens)
                whole = len(tokens) // self.page_size
                assert own.pages[:whole] == match.pages[:whole]

    @invariant()
    def writers_see_what_they_wrote(self) -> None:
        for writer in getattr(self, "writers", []):
            self.expect(writer.namespace, writer.tokens, writer.pages, writer.computed)

    @invariant()
    def locked_stay(self) -> None:
        for writer in getattr(self, "writers", []):
            prefix = writer.tokens[: writer.lock.num_tokens]
            match = self.cache.match(writer.namespace, prefix)
            assert match.num_tokens == len(prefix)
            self.expect(writer.namespace, prefix, match.pages, match.num_tokens)

    def teardown(self) -> None:
        for writer in getattr(self, "writers", []):
            self.cache.unlock(writer.lock)
            self.pool.release(writer.pages)
        if hasattr(self, "cache"):
            self.cache.leases.clear()
            self.cache.reset()
            check_cache(self.cache, self.pool)
            assert self.pool.num_cached == 0
            assert self.pool.num_locked <= self.pool.accounts.num_set_aside
            assert self.cache.num_nodes == 0 or self.pinned


TestRadixMachine = RadixMachine.TestCase
TestRadixMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRadixMachine = pytest.mark.timeout(240)(TestRadixMachine)
