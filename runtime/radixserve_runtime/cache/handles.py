"""What a tree lends: a prefix that was found, and a path that is pinned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_runtime.cache.accounts import Namespace
    from radixserve_runtime.cache.node import Node, Root


class StaleMatchError(RuntimeError):
    """The tree was evicted between `match` and `lock`. Match again: a match is good until the next `evict`."""


@dataclass(frozen=True, slots=True)
class Match:
    """The longest prefix that the tree holds. Good until the next `evict`; `lock` it to keep it."""

    num_tokens: int
    node: Node
    """Node that holds the last token; the root when nothing matched."""
    page_size_tokens: int
    namespace: Namespace
    """Who asked. The node may be public."""

    @property
    def pages(self) -> list[int]:
        """Pages that cover the matched tokens, in order; the last may be covered in part."""
        return path_pages(self.node, self.num_tokens, self.page_size_tokens)


@dataclass(eq=False, slots=True)
class Lock:
    """A pinned path from the root to the end of `node`, which is `num_tokens` deep. Given back by `unlock`."""

    node: Node
    num_tokens: int
    root: Root
    namespace: Namespace
    """Whose it is: what its sequence computes goes there, also where the path is public as yet."""
    released: bool = False


def path_pages(node: Node, num_tokens: int, page_size_tokens: int) -> list[int]:
    """Pages that cover the first `num_tokens` of the path to `node`, in order."""
    end = -(-num_tokens // page_size_tokens)
    pages = [-1] * end
    step: Node | None = node
    while step is not None and end > 0:
        first = step.start // page_size_tokens
        if first < end:
            pages[first:end] = step.pages[: end - first]
            end = first
        step = step.parent
    return pages
