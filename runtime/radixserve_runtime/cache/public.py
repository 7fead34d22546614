"""Public prefixes: prompts that the operator declared, pinned for as long as the runtime runs.

They are computed under a namespace that nobody else sees and enter the public tree when they are complete. Pages that
owners share are pinned without exception: so every cached page belongs to one owner, who can be made to give it up.
And no tree keeps pages of its own for what is public as a whole page: so a sequence never needs more pages than those
of its private part, however often it is preempted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import PUBLIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.cache.handles import Lock
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache


class PublicPrefixError(ValueError):
    """A public prefix that can't be pinned. The text says why and what to do."""


class PublicPrefixes:
    """Sets pages aside for public prefixes, at most half of those that no tenant has reserved, and pins them."""

    def __init__(self, cache: RadixCache, pool: PagePool) -> None:
        self._cache = cache
        self._pool = pool
        self._locks: list[Lock] = []

    def is_pinned(self, token_ids: Sequence[int]) -> bool:
        """Whether all of a prompt is public already."""
        return self._cache.num_public_tokens(token_ids) == len(token_ids)

    def set_aside(self, token_ids: Sequence[int]) -> int:
        """Promise pages to a prompt; returns how many. Raises `PublicPrefixError` where there are not enough."""
        if not self._cache.enabled:
            raise PublicPrefixError("public prefixes need the prefix cache, which is off")
        accounts = self._pool.accounts
        limit = (self._pool.num_pages - accounts.num_reserved) // 2
        shared = self._cache.num_public_tokens(token_ids) // self._pool.page_size_tokens
        num_pages = self._pool.pages_for(len(token_ids)) - shared
        if accounts.num_set_aside + num_pages > limit:
            raise PublicPrefixError(
                f"public prefixes may pin {limit} pages, half of what no tenant has reserved; {accounts.num_set_aside} are "
                f"taken and this one needs {num_pages} more. Declare less, reserve less, or start with more --kv-tokens"
            )
        accounts.num_set_aside += num_pages
        return num_pages

    def give_back(self, num_pages: int) -> None:
        """The prompt will not be pinned after all."""
        self._pool.accounts.num_set_aside -= num_pages

    def pin(self, token_ids: Sequence[int], pages: Sequence[int]) -> None:
        """Make a computed prompt public: `pages` hold the KV of all its tokens, and its computing sequence holds them."""
        lock = self._cache.lock(self._cache.match(PUBLIC, token_ids))
        self._cache.extend(lock, token_ids, pages)
        self._locks.append(lock)
        if len(token_ids) % self._pool.page_size_tokens:
            # Sealed: whoever continues it writes into a page of its own, the first as well as all others.
            self._pool.claim(pages[-1], self._pool.page_size_tokens)
        self._cache.adopt_public(token_ids)
