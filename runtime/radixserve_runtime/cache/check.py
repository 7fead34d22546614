"""Recounting everything that the tree keeps incrementally. For tests: O(nodes + pages)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_runtime.cache.node import Node
    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache


def check_cache(cache: RadixCache, pool: PagePool) -> None:
    """Raises `AssertionError` where the tree or the pool contradicts itself."""
    pool.check()
    nodes = list(cache.nodes())
    assert len(nodes) == cache.num_nodes, "number of nodes is off"
    references: dict[int, int] = {}
    for account in pool.accounts.by_index:
        ends = sum(1 for node in nodes if node.leases and node.root is not None and node.root.account is account)
        assert account.num_leased_paths == ends, f"leased paths of {account.owner} are off"
    for node in nodes:
        _check_node(node, pool.page_size_tokens)
        for page in node.pages:
            references[page] = references.get(page, 0) + 1
    assert all(pool.num_references(page) >= count for page, count in references.items()), "a node's reference is missing"


def _check_node(node: Node, page_size_tokens: int) -> None:
    parent = node.parent
    assert parent is not None
    assert len(node.tokens) > 0, "an empty node"
    assert parent.children[node.tokens[0]] is node
    assert node.start == parent.end, "a node doesn't begin where its parent ends"
    assert len(node.pages) == -(-node.end // page_size_tokens) - node.start // page_size_tokens
    assert node.locks >= sum(1 for child in node.children.values() if child.locks), "locks of children are missing"
    assert node.leased == len(node.leases or ()) + sum(1 for child in node.children.values() if child.leased), "leases are off"
    assert not node.locks or parent.locks, "a locked node under an unlocked one"
    assert node.root is not None
    assert not node.is_evictable or node.queued & (2 if node.leases else 1), "an evictable leaf isn't queued"
    assert node.leases is None or all(lease.node is node for lease in node.leases), "a lease ends elsewhere"
