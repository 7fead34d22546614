"""The radix cache: a compressed tree over token ids whose nodes keep KV pages. Reuse is exact to the token.

The interface is handles: `match` finds, `lock` pins what was found, `extend` publishes what a pinned sequence computed
further, `unlock` lets go, `evict` frees. A lock ends exactly at a node's end: a node is split where a lock needs it.
A namespace (a tuple of typed keys such as (("tenant", "a"), ("salt", "x"))) has a tree of its own. It also sees the
public tree: a match is the longer of both. What continues a public prefix is published as a whole path in its own tree,
whose nodes refer to the public pages; only what tells tokens from each other is kept twice, never KV.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import PUBLIC, Namespace
from radixserve_runtime.cache.eviction import EvictionKey, least_recently_used
from radixserve_runtime.cache.handles import Lock, Match, StaleMatchError, path_pages
from radixserve_runtime.cache.leases import Leases
from radixserve_runtime.cache.node import Root, token_run
from radixserve_runtime.cache.order import EvictionOrder
from radixserve_runtime.cache.tree import Tree, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve_runtime.cache.accounts import Account, Owner
    from radixserve_runtime.cache.node import Node, TokenRun
    from radixserve_runtime.cache.pages import PagePool

__all__ = ["Lock", "Match", "Namespace", "RadixCache", "StaleMatchError"]


class RadixCache:
    """The tree over one pool. Disabled, it matches nothing and keeps nothing."""

    def __init__(self, pool: PagePool, enabled: bool = True, eviction_key: EvictionKey = least_recently_used) -> None:
        self.enabled = enabled
        self.num_evicted_pages = 0
        self.evicted_tick = -1
        """When the most recently used of all that was evicted had been used last (`tick`)."""
        self.num_resets = 0
        self.version = 0
        """Grows when tokens are added: while it stands still no match can have become longer."""
        self._pool = pool
        self._page_size = pool.page_size_tokens
        self._order = EvictionOrder(eviction_key, pool.accounts)
        self._tree = Tree(pool, self._order)
        self._public_depth = 0
        """Tokens of the longest public prefix."""
        self.leases = Leases(self, self._tree, self._order)

    # ---- reading ---------------------------------------------------------------------------------------------

    def match(self, namespace: Namespace, token_ids: Sequence[int], limit: int | None = None) -> Match:
        """The longest prefix of `token_ids[:limit]` in the tree of `namespace` or, if longer, the public one. Changes nothing."""
        tokens = token_run(token_ids)
        end = len(tokens) if limit is None else min(limit, len(tokens))
        node, position = walk(self._tree.root(namespace), tokens, end)
        public = self._tree.roots.get(PUBLIC)
        if public is not None and position < end:
            public_node, public_position = walk(public, tokens, end)
            if public_position > position:
                node, position = public_node, public_position
        return Match(position, node, self._page_size, namespace)

    def num_public_tokens(self, token_ids: Sequence[int], limit: int | None = None) -> int:
        """How many tokens of the longest prefix are public, and so neither charged to a tenant nor ever evicted."""
        return self.match(PUBLIC, token_ids, limit).num_tokens

    # ---- pinning ---------------------------------------------------------------------------------------------

    def lock(self, match: Match) -> Lock:
        """Pin the matched path, so that it isn't evicted. Raises `StaleMatchError`.

        Costs O(pages newly locked).
        """
        node = match.node
        while node.parent is not None and node.start >= match.num_tokens:
            node = node.parent  # split since it was matched
        if isinstance(node, Root):
            node = root = self._tree.keep_root(node)
        elif node.parent is None or node.root is None or node.end < match.num_tokens:
            raise StaleMatchError(f"{match.num_tokens} tokens were matched and some were evicted since: match again")
        else:
            root = node.root
        if node.end > match.num_tokens:
            node = self._tree.split(node, match.num_tokens)
        self._tree.pin(node)
        return Lock(node, match.num_tokens, root, match.namespace)

    def unlock(self, lock: Lock) -> None:
        """Let go of a pinned path; it stays in the tree until it is evicted. Doing it twice is a bug."""
        assert not lock.released, "unlocked twice"
        lock.released = True
        self._tree.unpin(lock.node)
        self._tree.forget_if_empty(lock.root)

    # ---- adding ----------------------------------------------------------------------------------------------

    def insert(self, namespace: Namespace, token_ids: Sequence[int], pages: Sequence[int]) -> int:
        """Publish KV from nothing on: `pages` cover all of `token_ids`. Returns how many tokens were new."""
        lock = self.lock(self.match(namespace, token_ids, 0))
        num_new = self.extend(lock, token_ids, pages)
        self.unlock(lock)
        return num_new

    def extend(self, lock: Lock, token_ids: Sequence[int], pages: Sequence[int], num_tokens: int | None = None) -> int:
        """Publish `token_ids[:num_tokens]`, of which the first `lock.num_tokens` are the locked path, and move the lock to its end.

        `pages` cover the tokens from position 0 on; KV of all of them must be written (or be so before anything reads
        it). Where the tree has tokens already its own pages stay, and the caller's are the caller's to release.
        A lock on a public path moves to the tree of its own namespace, which then has that path too.
        Costs O(new tokens). Returns how many tokens the tree did not have.
        """
        end = len(token_ids) if num_tokens is None else num_tokens
        if not self.enabled or end <= lock.num_tokens:
            return 0
        tokens = token_run(token_ids)
        at_home = lock.root.namespace == lock.namespace
        if not at_home:
            lock.root = self._tree.keep_root(self._tree.root(lock.namespace))
        start, depth = (lock.node, lock.num_tokens) if at_home else (lock.root, 0)
        node, position = self._tree.descend(start, depth, tokens, end)
        num_new = end - position
        if num_new:
            pages = self._prefer_public(lock.namespace, tokens, pages, position, end)
            own = 1 if node is lock.node else 0
            if node.parent is not None and not node.children and node.locks == own and not node.leases:
                self._tree.lengthen(node, tokens[position:end], pages)
            else:
                node = self._tree.attach(node, tokens[position:end], pages)
            self.version += 1
        if node is not lock.node:
            self._tree.pin(node)
            self._tree.unpin(lock.node)
            lock.node = node
        lock.num_tokens = end
        return num_new

    def adopt_public(self, token_ids: Sequence[int]) -> None:
        """A public prefix is complete: trees that have it too let go of their own whole pages of it. O(namespaces + their pages of it)."""
        tokens = token_run(token_ids)
        self._public_depth = max(self._public_depth, len(tokens))
        public_node, known = walk(self._tree.root(PUBLIC), tokens, len(tokens))
        public = path_pages(public_node, known, self._page_size)
        for root in self._tree.roots.values():
            if root.namespace == PUBLIC:
                continue
            node, depth = walk(root, tokens, len(tokens))
            while node.parent is not None:
                self._tree.replace_pages(node, public[: depth // self._page_size])
                node = node.parent

    def _prefer_public(
        self, namespace: Namespace, tokens: TokenRun, pages: Sequence[int], position: int, end: int
    ) -> Sequence[int]:
        """`pages`, with public ones wherever a whole page past `position` is public, though the caller computed it again."""
        if position >= self._public_depth or namespace == PUBLIC:
            return pages
        node, known = walk(self._tree.root(PUBLIC), tokens, end)
        whole = known // self._page_size
        if whole * self._page_size <= position:
            return pages
        return [*path_pages(node, whole * self._page_size, self._page_size), *pages[whole:]]

    # ---- freeing ---------------------------------------------------------------------------------------------

    def evict(self, num_pages: int, taker: Owner | None = None) -> int:
        """Free at least `num_pages` pages if so many are cached and `taker` may take them; returns how many were freed.

        Takes unlocked leaves in the order of `cache.order`, and of the last one only as much of its end as is needed.
        Without a taker also what is within reserved shares goes, at last.
        """
        return self._evict(num_pages, self._pool.accounts.get(taker) if taker else None, leased=True)

    def _evict(self, num_pages: int, account: Account | None, *, leased: bool) -> int:
        freed = 0
        while freed < num_pages:
            found = self._order.pop_for(account, leased=leased)
            if found is None:
                break
            freed += self._free(found[0], min(num_pages - freed, found[1]))
        self.num_evicted_pages += freed
        return freed

    def make_free(self, num_pages: int, owner: Owner) -> None:
        """See that `owner` can allocate so many pages. The caller knows from `PagePool.available_for` that it is possible.

        Whoever would come to have more than its own limit loses its own cached pages first.
        """
        account = self._pool.accounts.get(owner)
        self._evict_own(account, account.num_pages + num_pages - account.max_pages)
        self.evict(num_pages - self._pool.num_free, owner)

    def drop_own(self, owner: Owner) -> int:
        """Drop everything of one owner that isn't locked; returns how many pages became free."""
        return self._evict_own(self._pool.accounts.get(owner), self._pool.num_pages + 1)

    def _evict_own(self, account: Account, num_pages: int) -> int:
        freed = 0
        while freed < num_pages:
            node = self._order.pop_own(account)
            if node is None:
                break
            freed += self._free(node, num_pages - freed)
        self.num_evicted_pages += freed
        return freed

    def reset(self) -> int:
        """Drop everything that is neither locked nor leased; returns how many pages became free."""
        self.num_resets += 1
        return self._evict(self._pool.num_pages + 1, None, leased=False)

    def _free(self, leaf: Node, num_pages: int) -> int:
        """Leases that end in the leaf are lost."""
        self.leases.lose(leaf)
        self.evicted_tick = max(self.evicted_tick, leaf.last_used)
        return self._tree.shrink(leaf, num_pages)

    # ---- looking in ------------------------------------------------------------------------------------------

    @property
    def tick(self) -> int:
        """A clock that goes on with each use of what is cached."""
        return self._tree.tick

    @property
    def num_nodes(self) -> int:
        """Nodes of all trees but their roots."""
        return self._tree.num_nodes

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots: O(nodes). For statistics and `cache.check`."""
        return self._tree.nodes()
