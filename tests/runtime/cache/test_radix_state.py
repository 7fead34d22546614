"""The radix cache and the pool against a model in which every slot of every page knows which prefix it holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixserve_runtime.cache.check import check_cache
from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.radix import Lock, RadixCache

NUM_PAGES = 24
NAMESPACES: tuple[Any, ...] = ((("tenant", "a"),), (("salt", "a"),))
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Writer:
    """What a sequence does: holds pages, some of them shared, and a lock."""

    def __init__(self, namespace: Any, tokens: list[int], pages: list[int], lock: Lock, computed: int) -> None:
        self.namespace, self.tokens, self.pages, self.lock, self.computed = namespace, tokens, pages, lock, computed


class RadixMachine(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def start(self, page_size: int) -> None:
        self.page_size = page_size
        self.pool = PagePool(NUM_PAGES, page_size)
        self.cache = RadixCache(self.pool)
        self.content: list[list[Any]] = [[None] * page_size for _ in range(NUM_PAGES)]
        self.published: set[tuple[Any, tuple[int, ...]]] = set()
        self.writers: list[Writer] = []

    def slot(self, pages: list[int], position: int) -> Any:
        return self.content[pages[position // self.page_size]][position % self.page_size]

    def expect(self, namespace: Any, tokens: list[int], pages: list[int], count: int) -> None:
        for position in range(count):
            assert self.slot(pages, position) == (namespace, tuple(tokens[: position + 1]))

    def longest_published(self, namespace: Any, tokens: list[int]) -> int:
        return max((n for n in range(len(tokens) + 1) if (namespace, tuple(tokens[:n])) in self.published), default=0)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), more=TOKENS, limit=st.sampled_from([3, 5, 100, 100]))
    def arrive(self, data: Any, namespace: Any, more: list[int], limit: int) -> None:
        """A prompt that continues some known prefix: matched, locked, computed to its end."""
        known = sorted({tokens for where, tokens in self.published if where == namespace} | {()})
        tokens = [*data.draw(st.sampled_from(known)), *more][:14]
        match = self.cache.match(namespace, tokens, limit)
        assert match.num_tokens <= min(limit, len(tokens), self.longest_published(namespace, tokens))
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
                self.cache.evict(1 - self.pool.num_free)
                if not self.pool.num_free:
                    return
                (page,) = self.pool.allocate(1)
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

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def publish(self, data: Any) -> None:
        writer = data.draw(st.sampled_from(self.writers))
        version = self.cache.version
        before = self.cache.match(writer.namespace, writer.tokens).num_tokens
        new = self.cache.extend(writer.lock, writer.tokens, writer.pages, writer.computed)
        assert new == writer.computed - min(before, writer.computed)
        assert self.cache.version == version + (new > 0)
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
        free, cached = self.pool.num_free, self.pool.num_cached
        freed = self.cache.evict(num_pages)
        assert freed == min(num_pages, cached)
        assert self.pool.num_free == free + freed

    @precondition(lambda self: self.cache.num_nodes > 6)
    @rule()
    def reset(self) -> None:
        self.cache.reset()
        assert self.pool.num_cached == 0

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "cache"):
            return
        check_cache(self.cache, self.pool)
        held = {page for writer in self.writers for page in writer.pages}
        for node in self.cache.nodes():
            if node.locks:
                held.update(node.pages)
        assert self.pool.num_locked == len(held)
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_locked == NUM_PAGES

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
            assert self.pool.num_locked == 0
            self.cache.reset()
            check_cache(self.cache, self.pool)
            assert self.pool.num_free == NUM_PAGES
            assert self.cache.num_nodes == 0


TestRadixMachine = RadixMachine.TestCase
TestRadixMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRadixMachine = pytest.mark.timeout(240)(TestRadixMachine)
