"""A node of the radix tree, and comparing runs of tokens."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.cache.accounts import Account, Namespace
    from radixserve_runtime.cache.leases import Lease

#: A run of token ids: 4 bytes a token, slices compare in C.
TokenRun: TypeAlias = "array[int]"


def token_run(token_ids: Iterable[int] = ()) -> TokenRun:
    """Token ids in compact form; a run is returned as it is."""
    return token_ids if isinstance(token_ids, array) else array("i", token_ids)


def common_prefix_length(run: TokenRun, tokens: TokenRun, start: int, end: int) -> int:
    """How many tokens `run` and `tokens[start:end]` have in common at their beginning.

    Equal runs cost one comparison of memory; otherwise the place of the difference is found by halving.
    """
    length = min(len(run), end - start)
    if run[:length] == tokens[start : start + length]:
        return length
    same, different = 0, length
    while different - same > 1:
        middle = (same + different) // 2
        if run[same:middle] == tokens[start + same : start + middle]:
            same = middle
        else:
            different = middle
    return same


class Node:
    """Tokens [start, start + len(tokens)) of every prompt that passes here, and the pages that hold their KV.

    `pages[i]` is page number `start // P + i` of those prompts. It holds right KV from its first slot up to the node's
    end, also where its first tokens belong to an ancestor: so on a path the deepest node's page counts.

    `locks` is the number of `Lock`s that end here plus the number of children with locks: a locked node's ancestors
    are locked, and locking stops at the first ancestor that already was. `leased` counts leases in the same way.
    """

    __slots__ = ("children", "last_used", "leased", "leases", "locks", "pages", "parent", "queued", "root", "start", "tokens")

    def __init__(self, parent: Node | None, root: Root | None, start: int, tokens: TokenRun, pages: array[int]) -> None:
        self.parent = parent
        self.root = root
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_used = 0
        self.leases: list[Lease] | None = None
        """Leases that end here; None for none."""
        self.leased = 0
        self.queued = 0
        """Which eviction queues have an entry for it: 1 the one of leaves without a lease, 2 the other."""

    @property
    def end(self) -> int:
        """First position after the node."""
        return self.start + len(self.tokens)

    @property
    def is_evictable(self) -> bool:
        """An unlocked leaf (a root is none)."""
        return self.parent is not None and not self.children and self.locks == 0


class Root(Node):
    """The empty prompt of one namespace, and whose pages the tree below it holds."""

    __slots__ = ("account", "namespace")

    def __init__(self, namespace: Namespace, account: Account) -> None:
        super().__init__(None, None, 0, array("i"), array("i"))
        self.namespace = namespace
        self.account = account
