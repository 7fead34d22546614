"""The pages of sequences: taking what the cache has, growing, copying before a write that others would see, publishing, giving back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from zlib import crc32

from radixserve_runtime.cache.accounts import owner_of

if TYPE_CHECKING:
    from radixserve_runtime.cache.node import TokenRun
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import Match, RadixCache
    from radixserve_runtime.scheduler.accounts import Program
    from radixserve_runtime.scheduler.sequence import Sequence

#: Part of the pool that is free or cached while pages are plenty.
_PLENTY = 0.5

#: Of a program's contexts so many are remembered (sub-agents have their own beside the main one).
_NUM_CONTEXTS = 8

#: In so many parts a context is compared with what comes later, which may agree with some of it only.
_NUM_PARTS = 8


def _checksums(tokens: TokenRun, lengths: list[int]) -> list[int]:
    """Of the first tokens, by lengths that grow. Costs the memory that is read once."""
    view, values, value, start = memoryview(tokens), list[int](), 0, 0
    for length in lengths:
        value = crc32(view[start:length], value)
        start = length
        values.append(value)
    return values


def match_limit(sequence: Sequence) -> int:
    """Most tokens that a sequence may take from the cache.

    The last token is always computed, as its logits are wanted. So is every position whose logits give a prompt
    log-probability that has not been reported; once the sequence draws tokens all of them have been.
    """
    limit = sequence.num_tokens - 1
    if sequence.logprobs_from >= 0 and sequence.num_output_tokens == 0:
        limit = min(limit, max(0, sequence.logprobs_from - 1))
    return limit


class SequencePages:
    """What the scheduler does with pool and tree on behalf of one sequence. It decides nothing.

    A sequence refers to every page in its `pages` itself, and its `lock` keeps its path in the tree from being evicted.
    """

    def __init__(self, cache: RadixCache, pool: PagePool) -> None:
        self._cache = cache
        self._pool = pool
        self._page_size = pool.page_size_tokens

    def attach(self, sequence: Sequence, match: Match) -> None:
        """Begin with what the cache has."""
        sequence.lock = self._cache.lock(match)
        sequence.pages = match.pages
        sequence.num_computed = match.num_tokens
        self._pool.hold(sequence.pages)

    def missing(self, sequence: Sequence, end: int) -> int:
        """Free pages that `grow` to `end` takes."""
        return max(0, self._pool.pages_for(end) - len(sequence.pages)) + self._writes_shared(sequence)

    def available(self, sequence: Sequence) -> int:
        """Pages that it may take now, if need be after evicting: as far as its tenant's limit and others' reserves allow."""
        return self._pool.available_for(owner_of(sequence.namespace))

    def is_held_back(self, sequence: Sequence, num_pages: int) -> bool:
        """Whether so many pages more would take its tenant beyond its own limit, whatever others do."""
        account = self._pool.accounts.get(owner_of(sequence.namespace))
        # Where its limit is the whole pool it is the pool that has no room, and nobody else should go before it for that.
        return account.max_pages < self._pool.num_pages and num_pages > account.own_room

    def may_take_from(self, sequence: Sequence, victim: Sequence, end: int) -> bool:
        """Whether preempting `victim` helps `sequence` to grow to `end` and leaves the other tenant what it has reserved."""
        mine, theirs = owner_of(sequence.namespace), owner_of(victim.namespace)
        if mine == theirs:
            return True
        account = self._pool.accounts.get(theirs)
        return account.num_locked > account.reserved_pages and not self.is_held_back(sequence, self.missing(sequence, end))

    def keeps(self, sequence: Sequence) -> bool:
        """Whether its KV would stay in the tree for a good while if it were preempted now, as much else would be evicted before."""
        return self._cache.enabled and self._pool.num_available >= _PLENTY * self._pool.num_pages

    @property
    def are_promised(self) -> bool:
        """Whether less than half of the pool is free, or cached and under no lease."""
        return self._pool.num_leased > 0 and self._pool.num_available - self._pool.num_leased < _PLENTY * self._pool.num_pages

    def known(self, program: Program, tokens: TokenRun) -> int:
        """About how many tokens at the beginning of a new sequence its program had computed before, whether the cache still has them or not."""
        lengths = sorted(length for length in program.contexts if length <= len(tokens))
        sums = zip(lengths, _checksums(tokens, lengths), strict=True)
        return max((length for length, value in sums if program.contexts[length] == value), default=0)

    def lost(self, sequence: Sequence, num_known_tokens: int, num_cached_tokens: int) -> int:
        """How many tokens of a waiting sequence were computed before and have to be computed again, as the cache has evicted them."""
        return max(0, min(num_known_tokens, match_limit(sequence)) - num_cached_tokens) if self._cache.enabled else 0

    def promise(self, sequence: Sequence, tokens: TokenRun, num_known_tokens: int, now_s: float) -> bool:
        """A new sequence goes on with what its program has computed. If that is under a lease (its branch's, or the one that it was forked from) it is kept until it starts; returns whether a branch took that."""
        if not num_known_tokens or not self._pool.num_leased:
            return False
        node = self._cache.match(sequence.namespace, tokens[:num_known_tokens]).node
        if not node.leased:
            return False
        is_told = any(lease.is_told for lease in node.leases or ())
        self._cache.leases.take(sequence, sequence.namespace, tokens[:num_known_tokens], math.inf, now_s)
        return is_told

    def fulfil(self, sequence: Sequence) -> None:
        """It starts, or it doesn't wait any more."""
        self._cache.leases.release(sequence)

    def capacity_tokens(self, sequence: Sequence, tokens: TokenRun) -> int:
        """Most tokens that it could ever have KV for: what its tenant can have, and the public pages that it begins with."""
        public = self._cache.num_public_tokens(tokens, match_limit(sequence)) // self._page_size
        return (self._pool.accounts.capacity(owner_of(sequence.namespace)) + public) * self._page_size

    def fitting(self, sequence: Sequence, count: int) -> int:
        """How many of the next `count` tokens `grow` could make writable with what is free or can be evicted."""
        num_pages = len(sequence.pages) + self.available(sequence) - self._writes_shared(sequence)
        return max(0, min(count, num_pages * self._page_size - sequence.num_computed))

    def _writes_shared(self, sequence: Sequence) -> bool:
        index, offset = divmod(sequence.num_computed, self._page_size)
        return index < len(sequence.pages) and self._pool.must_copy(sequence.pages[index], offset)

    def grow(self, sequence: Sequence, end: int, copies: list[tuple[int, int, int]]) -> None:
        """Make tokens [num_computed, end) writable, evicting where pages are missing. The caller has seen that so many are `available`.

        A page whose next slots others may read is replaced by a new one, and (old, new, tokens) is added to `copies`.
        The old page may be given away before the copy is done: copies are done in order, before anything is computed.
        """
        pool, pages, owner = self._pool, sequence.pages, owner_of(sequence.namespace)
        missing = self.missing(sequence, end)
        if missing:
            self._cache.make_free(missing, owner)
        index, offset = divmod(sequence.num_computed, self._page_size)
        if self._writes_shared(sequence):
            (own,) = pool.allocate(1, owner)
            copies.append((pages[index], own, offset))
            pool.release((pages[index],))
            pages[index] = own
        pages.extend(pool.allocate(pool.pages_for(end) - len(pages), owner))
        for number in range(index, pool.pages_for(end)):
            pool.claim(pages[number], min(self._page_size, end - number * self._page_size))

    def publish(self, sequence: Sequence, tokens: TokenRun) -> None:
        """Let others share what the sequence has computed so far."""
        if sequence.lock is not None:
            self._cache.extend(sequence.lock, tokens, sequence.pages, sequence.num_computed)

    def unpin(self, sequence: Sequence) -> None:
        """Give up the lock alone. Under pressure the tree may then lose pages that double the sequence's own."""
        if sequence.lock is not None:
            self._cache.unlock(sequence.lock)
            sequence.lock = None

    def forget_own(self, sequence: Sequence) -> None:
        """Drop all that its tenant has in the cache and no sequence uses: pages that it shares with the tree alone need no copy then."""
        self._cache.drop_own(owner_of(sequence.namespace))

    def remember(self, sequence: Sequence, tokens: TokenRun, program: Program) -> None:
        """The context that a sequence has computed is its program's."""
        lengths = sorted({max(1, sequence.num_computed * part // _NUM_PARTS) for part in range(1, _NUM_PARTS + 1)})
        for length, value in zip(lengths, _checksums(tokens, lengths), strict=True):
            program.contexts.pop(length, None)
            program.contexts[length] = value
        while len(program.contexts) > _NUM_CONTEXTS * _NUM_PARTS:
            del program.contexts[next(iter(program.contexts))]

    def detach(self, sequence: Sequence, tokens: TokenRun) -> None:
        """Leave what is computed in the tree and let go of everything."""
        if sequence.num_computed and sequence.lock is None:
            self._cache.insert(sequence.namespace, tokens[: sequence.num_computed], sequence.pages)
        self.publish(sequence, tokens)
        self.unpin(sequence)
        self._pool.release(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0

    def truncate(self, sequence: Sequence, tokens: TokenRun) -> None:
        """The sequence now has `tokens` alone: forget the KV past them."""
        num_tokens = len(tokens)
        keep = self._pool.pages_for(num_tokens)
        if sequence.num_computed > num_tokens:
            sequence.num_computed = num_tokens
        self._pool.release(sequence.pages[keep:])
        del sequence.pages[keep:]
        lock = sequence.lock
        if lock is not None and lock.num_tokens > num_tokens:
            sequence.lock = self._cache.lock(self._cache.match(sequence.namespace, tokens))
            self._cache.unlock(lock)
