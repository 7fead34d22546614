"""The trees themselves: nodes are found, cut, grown, pinned and shrunk here, and the pool told of it.

This decides nothing: what to match, to publish and to evict is `RadixCache`'s.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from radixserve_runtime.cache.accounts import owner_of
from radixserve_runtime.cache.node import Node, Root, TokenRun, common_prefix_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve_runtime.cache.accounts import Namespace
    from radixserve_runtime.cache.leases import Lease
    from radixserve_runtime.cache.order import EvictionOrder
    from radixserve_runtime.cache.pages import PagePool


def walk(node: Node, tokens: TokenRun, end: int) -> tuple[Node, int]:
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


class Tree:
    """One tree for each namespace, over one pool."""

    def __init__(self, pool: PagePool, order: EvictionOrder) -> None:
        self.num_nodes = 0
        self.roots: dict[Namespace, Root] = {}
        self._pool = pool
        self._page_size = pool.page_size_tokens
        self._order = order
        self._tick = 0

    def root(self, namespace: Namespace) -> Root:
        """The root of a namespace; a new one isn't kept until something is locked in it."""
        return self.roots.get(namespace) or Root(namespace, self._pool.accounts.get(owner_of(namespace)))

    def keep_root(self, root: Root) -> Root:
        """The root of its namespace: this one, if there is none yet."""
        return self.roots.setdefault(root.namespace, root)

    @property
    def tick(self) -> int:
        """Uses so far: `Node.last_used` of whatever is used next is larger."""
        return self._tick

    def _touch(self, node: Node) -> None:
        self._tick += 1
        node.last_used = self._tick

    def pin(self, node: Node) -> None:
        """Keep the path to a node from being evicted. O(pages newly locked)."""
        self._touch(node)
        step: Node | None = node
        while step is not None:
            step.locks += 1
            if step.locks > 1:
                break
            self._pool.lock(step.pages)
            step = step.parent

    def unpin(self, node: Node) -> None:
        """Undo one `pin`."""
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

    def lease(self, node: Node, *leases: Lease) -> None:
        """The path to a node comes under more leases. O(pages that come under a lease)."""
        assert node.root is not None
        node.root.account.num_leased_paths += node.leases is None
        node.leases = [*(node.leases or ()), *leases]
        for _ in leases:
            self._count_lease(node)

    def _count_lease(self, node: Node) -> None:
        step: Node | None = node
        while step is not None:
            step.leased += 1
            if step.leased > 1:
                break
            self._pool.lease(step.pages)
            step = step.parent

    def unlease(self, node: Node, *leases: Lease) -> None:
        """Undo `lease`."""
        assert node.root is not None
        node.leases = [lease for lease in node.leases or () if lease not in leases] or None
        node.root.account.num_leased_paths -= node.leases is None
        count = len(leases)
        step: Node | None = node
        while step is not None and count:
            step.leased -= count
            assert step.leased >= 0, "more leases ended than were taken"
            if step.leased:
                break
            self._pool.unlease(step.pages)
            step, count = step.parent, 1

    def descend(self, node: Node, position: int, tokens: TokenRun, end: int) -> tuple[Node, int]:
        """The node, split if need be, that ends where the tree's knowledge of `tokens[:end]` ends."""
        while position < end:
            child = node.children.get(tokens[position])
            if child is None:
                break
            common = common_prefix_length(child.tokens, tokens, position, end)
            position += common
            if common < len(child.tokens):
                return self.split(child, position), position
            node = child
        return node, position

    def split(self, node: Node, position: int) -> Node:
        """Cut a node at an absolute position; returns the new upper half. The lower half stays the same object, as locks end there."""
        assert node.parent is not None
        assert node.start < position < node.end
        cut, first = position - node.start, node.start // self._page_size
        upper = Node(node.parent, node.root, node.start, node.tokens[:cut], node.pages[: -(-position // self._page_size) - first])
        upper.last_used = node.last_used
        upper.locks = 1 if node.locks else 0
        upper.leased = 1 if node.leased else 0
        upper.children[node.tokens[cut]] = node
        node.parent.children[node.tokens[0]] = upper
        node.parent, node.start = upper, position
        node.tokens, node.pages = node.tokens[cut:], node.pages[position // self._page_size - first :]
        if position % self._page_size:
            shared = upper.pages[-1:]
            self._pool.retain(shared)
            if node.locks:
                self._pool.lock(shared)
            if node.leased:
                self._pool.lease(shared)
        self.num_nodes += 1
        return upper

    def _node_pages(self, pages: Sequence[int], start: int, end: int) -> array[int]:
        return array("i", pages[start // self._page_size : -(-end // self._page_size)])

    def attach(self, parent: Node, tokens: TokenRun, pages: Sequence[int]) -> Node:
        """A new leaf below `parent`; `pages` cover its prompt from position 0 on."""
        start = parent.end
        root = parent if isinstance(parent, Root) else parent.root
        node = Node(parent, root, start, tokens, self._node_pages(pages, start, start + len(tokens)))
        parent.children[tokens[0]] = node
        self._pool.retain(node.pages)
        self.num_nodes += 1
        return node

    def lengthen(self, leaf: Node, tokens: TokenRun, pages: Sequence[int]) -> None:
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

    def shrink(self, leaf: Node, num_pages: int) -> int:
        """Free up to `num_pages` pages from the end of an unlocked leaf; returns how many. The leaf goes when nothing is left."""
        freed = 0
        while leaf.pages and freed < num_pages:
            page = (leaf.pages.pop(),)
            if leaf.leased:
                self._pool.unlease(page)
            freed += self._pool.drop(page)
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
        self._hand_up_leases(leaf, parent)
        del parent.children[leaf.tokens[0]]
        leaf.parent = None
        self.num_nodes -= 1
        # A parent was in use whenever its child was; recorded here instead of on every use.
        parent.last_used = max(parent.last_used, leaf.last_used)
        if isinstance(parent, Root):
            self.forget_if_empty(parent)
        elif parent.is_evictable:
            self._order.push(parent)

    def _hand_up_leases(self, leaf: Node, parent: Node) -> None:
        """A leaf goes: what is left of its leases' paths ends at its parent, or nowhere."""
        leases = leaf.leases or ()
        if leases:
            self.unlease(leaf, *leases)
        for lease in leases:
            lease.node = None if isinstance(parent, Root) else parent
        if leases and not isinstance(parent, Root):
            self.lease(parent, *leases)

    def forget_if_empty(self, root: Root) -> None:
        """Namespaces that hold nothing cost nothing."""
        if not root.children and root.locks == 0 and self.roots.get(root.namespace) is root:
            del self.roots[root.namespace]

    def replace_pages(self, node: Node, public: list[int]) -> None:
        """Refer to a prompt's public pages, numbered from its beginning, in place of the node's own ones for the same tokens."""
        first = node.start // self._page_size
        new = array("i", public[first : first + len(node.pages)])
        old = node.pages[: len(new)]
        self._pool.retain(new)
        if node.locks:
            self._pool.lock(new)
            self._pool.unlock(old)
        if node.leased:
            self._pool.lease(new)
            self._pool.unlease(old)
        node.pages[: len(new)] = new
        self._pool.drop(old)

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots: O(nodes). For statistics and `cache.check`."""
        stack: list[Node] = list(self.roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node
