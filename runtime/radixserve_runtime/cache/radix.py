"""The radix cache: a compressed tree over token ids whose nodes keep KV pages. Reuse is exact to the token.

The interface is handles: `match` finds, `lock` pins what was found, `extend` publishes what a pinned sequence computed
further, `unlock` lets go, `evict` frees. A lock ends exactly at a node's end: a node is split where a lock needs it.
A namespace (a tuple of typed keys such as (("tenant", "a"), ("salt", "x"))) has a tree of its own. It also sees the
public tree: a match is the longer of both. What continues a public prefix is published as a whole path in its own tree,
whose nodes refer to the public pages; only what tells tokens from each other is kept twice, never KV.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import PUBLIC, Namespace, owner_of
from radixserve_runtime.cache.eviction import EvictionKey, least_recently_used
from radixserve_runtime.cache.handles import Lock, Match, StaleMatchError, path_pages
from radixserve_runtime.cache.leases import Leases
from radixserve_runtime.cache.node import Node, Root, TokenRun, common_prefix_length, token_run
from radixserve_runtime.cache.order import EvictionOrder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve_runtime.cache.accounts import Account, Owner
    from radixserve_runtime.cache.pages import PagePool

__all__ = ["Lock", "Match", "Namespace", "RadixCache", "StaleMatchError"]


def _walk(node: Node, tokens: TokenRun, end: int) -> tuple[Node, int]:
    """The node below a root that holds the last token of `tokens[:end]` that the tree knows, and how many it knows."""
    position = 0
    while position < end:
        child = node.children.get(tokens[position])
        if child is None:
            break
        common = common_prefix_length(child.tokens, tokens, position, end)
        node = child
        position += common
        if common < len(child.tokens):
            break
    return node, position


class RadixCache:
    """The tree over one pool. Disabled, it matches nothing and keeps nothing."""

    def __init__(self, pool: PagePool, enabled: bool = True, eviction_key: EvictionKey = least_recently_used) -> None:
        self.enabled = enabled
        self.num_evicted_pages = 0
        self.num_nodes = 0
        self.version = 0
        """Grows when tokens are added: while it stands still no match can have become longer."""
        self._pool = pool
        self._page_size = pool.page_size_tokens
        self._roots: dict[Namespace, Root] = {}
        self._order = EvictionOrder(eviction_key, pool.accounts)
        self._tick = 0
        self._public_depth = 0
        """Tokens of the longest public prefix."""
        self.leases = Leases(self, self._order)

    # ---- reading ---------------------------------------------------------------------------------------------

    def match(self, namespace: Namespace, token_ids: Sequence[int], limit: int | None = None) -> Match:
        """The longest prefix of `token_ids[:limit]` in the tree of `namespace` or, if longer, the public one. Changes nothing."""
        tokens = token_run(token_ids)
        end = len(tokens) if limit is None else min(limit, len(tokens))
        node, position = _walk(self._root(namespace), tokens, end)
        public = self._roots.get(PUBLIC)
        if public is not None and position < end:
            public_node, public_position = _walk(public, tokens, end)
            if public_position > position:
                node, position = public_node, public_position
        return Match(position, node, self._page_size, namespace)

    def num_public_tokens(self, token_ids: Sequence[int], limit: int | None = None) -> int:
        """How many tokens of the longest prefix are public, and so neither charged to a tenant nor ever evicted."""
        return self.match(PUBLIC, token_ids, limit).num_tokens

    def _root(self, namespace: Namespace) -> Root:
        """The root of a namespace; a new one isn't kept until something is locked in it."""
        return self._roots.get(namespace) or Root(namespace, self._pool.accounts.get(owner_of(namespace)))

    # ---- pinning ---------------------------------------------------------------------------------------------

    def lock(self, match: Match) -> Lock:
        """Pin the matched path, so that it isn't evicted. Raises `StaleMatchError`.

        Costs O(pages newly locked).
        """
        node = match.node
        while node.parent is not None and node.start >= match.num_tokens:
            node = node.parent  # split since it was matched
        if isinstance(node, Root):
            node = root = self._roots.setdefault(node.namespace, node)
        elif node.parent is None or node.root is None or node.end < match.num_tokens:
            raise StaleMatchError(f"{match.num_tokens} tokens were matched and some were evicted since: match again")
        else:
            root = node.root
        if node.end > match.num_tokens:
            node = self._split(node, match.num_tokens)
        self._pin(node)
        return Lock(node, match.num_tokens, root, match.namespace)

    def unlock(self, lock: Lock) -> None:
        """Let go of a pinned path; it stays in the tree until it is evicted. Doing it twice is a bug."""
        assert not lock.released, "unlocked twice"
        lock.released = True
        self._unpin(lock.node)
        self._forget_if_empty(lock.root)

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
            lock.root = self._roots.setdefault(lock.namespace, self._root(lock.namespace))
        start, depth = (lock.node, lock.num_tokens) if at_home else (lock.root, 0)
        node, position = self._descend(start, depth, tokens, end)
        num_new = end - position
        if num_new:
            pages = self._prefer_public(lock.namespace, tokens, pages, position, end)
            own = 1 if node is lock.node else 0
            if node.parent is not None and not node.children and node.locks == own and not node.leases:
                self._lengthen(node, tokens[position:end], pages)
            else:
                node = self._attach(node, tokens[position:end], pages)
            self.version += 1
        if node is not lock.node:
            self._pin(node)
            self._unpin(lock.node)
            lock.node = node
        lock.num_tokens = end
        return num_new

    def adopt_public(self, token_ids: Sequence[int]) -> None:
        """A public prefix is complete: trees that have it too let go of their own whole pages of it. O(namespaces + their pages of it)."""
        tokens = token_run(token_ids)
        self._public_depth = max(self._public_depth, len(tokens))
        public_node, known = _walk(self._root(PUBLIC), tokens, len(tokens))
        public = path_pages(public_node, known, self._page_size)
        for root in self._roots.values():
            if root.namespace == PUBLIC:
                continue
            node, depth = _walk(root, tokens, len(tokens))
            while node.parent is not None:
                self._replace_pages(node, public[: depth // self._page_size])
                node = node.parent

    def _replace_pages(self, node: Node, public: list[int]) -> None:
        first = node.start // self._page_size
        new = array("i", public[first : first + len(node.pages)])
        old = node.pages[: len(new)]
        self._pool.retain(new)
        if node.locks:
            self._pool.lock(new)
            self._pool.unlock(old)
        node.pages[: len(new)] = new
        self._pool.drop(old)

    def _prefer_public(
        self, namespace: Namespace, tokens: TokenRun, pages: Sequence[int], position: int, end: int
    ) -> Sequence[int]:
        """`pages`, with public ones wherever a whole page past `position` is public, though the caller computed it again."""
        if position >= self._public_depth or namespace == PUBLIC:
            return pages
        node, known = _walk(self._root(PUBLIC), tokens, end)
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
        account = self._pool.accounts.get(taker) if taker else None
        freed = 0
        while freed < num_pages:
            found = self._order.pop_for(account)
            if found is None:
                break
            freed += self._shrink(found[0], min(num_pages - freed, found[1]))
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
            freed += self._shrink(node, num_pages - freed)
        self.num_evicted_pages += freed
        return freed

    def reset(self) -> int:
        """Drop everything that isn't locked; returns how many pages became free."""
        return self.evict(self._pool.num_pages + 1)

    # ---- inside ----------------------------------------------------------------------------------------------

    def _touch(self, node: Node) -> None:
        self._tick += 1
        node.last_used = self._tick

    def _pin(self, node: Node) -> None:
        self._touch(node)
        step: Node | None = node
        while step is not None:
            step.locks += 1
            if step.locks > 1:
                break
            self._pool.lock(step.pages)
            step = step.parent

    def _unpin(self, node: Node) -> None:
        self._touch(node)
        step: Node | None = node
        while step is not None:
            step.locks -= 1
            assert step.locks >= 0, "unlocked more often than locked"
            if step.locks:
                break
            self._pool.unlock(step.pages)
            if step.is_evictable:
                self._order.push(step)
            step = step.parent

    def _descend(self, node: Node, position: int, tokens: TokenRun, end: int) -> tuple[Node, int]:
        """The node, split if need be, that ends where the tree's knowledge of `tokens[:end]` ends."""
        while position < end:
            child = node.children.get(tokens[position])
            if child is None:
                break
            common = common_prefix_length(child.tokens, tokens, position, end)
            position += common
            if common < len(child.tokens):
                return self._split(child, position), position
            node = child
        return node, position

    def _split(self, node: Node, position: int) -> Node:
        """Cut a node at an absolute position; returns the new upper half. The lower half stays the same object, as locks end there."""
        assert node.parent is not None
        assert node.start < position < node.end
        cut, first = position - node.start, node.start // self._page_size
        upper = Node(node.parent, node.root, node.start, node.tokens[:cut], node.pages[: -(-position // self._page_size) - first])
        upper.last_used = node.last_used
        upper.locks = 1 if node.locks else 0
        upper.children[node.tokens[cut]] = node
        node.parent.children[node.tokens[0]] = upper
        node.parent, node.start = upper, position
        node.tokens, node.pages = node.tokens[cut:], node.pages[position // self._page_size - first :]
        if position % self._page_size:
            shared = upper.pages[-1:]
            self._pool.retain(shared)
            if node.locks:
                self._pool.lock(shared)
        self.num_nodes += 1
        return upper

    def _node_pages(self, pages: Sequence[int], start: int, end: int) -> array[int]:
        return array("i", pages[start // self._page_size : -(-end // self._page_size)])

    def _attach(self, parent: Node, tokens: TokenRun, pages: Sequence[int]) -> Node:
        start = parent.end
        root = parent if isinstance(parent, Root) else parent.root
        node = Node(parent, root, start, tokens, self._node_pages(pages, start, start + len(tokens)))
        parent.children[tokens[0]] = node
        self._pool.retain(node.pages)
        self.num_nodes += 1
        return node

    def _lengthen(self, leaf: Node, tokens: TokenRun, pages: Sequence[int]) -> None:
        """Add tokens to a leaf that nobody else locks, so that a prompt in many chunks is one node."""
        added = self._node_pages(pages, leaf.end, leaf.end + len(tokens))
        replaced = leaf.pages[-1:] if leaf.end % self._page_size else array("i")
        self._pool.retain(added)
        if leaf.locks:
            self._pool.lock(added)
            self._pool.unlock(replaced)
        if replaced:
            del leaf.pages[-1:]
        leaf.pages.extend(added)
        leaf.tokens.extend(tokens)
        self._pool.drop(replaced)

    def _shrink(self, leaf: Node, num_pages: int) -> int:
        """Free up to `num_pages` pages from the end of an unlocked leaf; returns how many. The leaf goes when nothing is left.

        Leases that end in it are lost: the rest of their paths has nothing to wait for.
        """
        self.leases.lose(leaf)
        freed = 0
        while leaf.pages and freed < num_pages:
            freed += self._pool.drop((leaf.pages.pop(),))
        if leaf.pages:
            new_end = (leaf.start // self._page_size + len(leaf.pages)) * self._page_size
            del leaf.tokens[new_end - leaf.start :]
            self._order.push(leaf)
        else:
            self._remove(leaf)
        return freed

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.tokens[0]]
        leaf.parent = None
        self.num_nodes -= 1
        # A parent was in use whenever its child was; recorded here instead of on every use.
        parent.last_used = max(parent.last_used, leaf.last_used)
        if isinstance(parent, Root):
            self._forget_if_empty(parent)
        elif parent.is_evictable:
            self._order.push(parent)

    def _forget_if_empty(self, root: Root) -> None:
        if not root.children and root.locks == 0 and self._roots.get(root.namespace) is root:
            del self._roots[root.namespace]

    # ---- looking in ------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots: O(nodes). For statistics and `cache.check`."""
        stack: list[Node] = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node
