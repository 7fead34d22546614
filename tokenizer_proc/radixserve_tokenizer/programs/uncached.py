"""About how much of a prompt has to be computed: what its program's branches have not brought before.

What other programs left in the runtime's cache is not known here, so this is an upper bound for a program's first use of
a prompt; within the program it counts each part of its tree once, also where many branches of a fork ask side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_tokenizer.programs.branch import Branch


class Unshared:
    """Tokens before a fork that no branch of it has counted yet; the first to ask counts them for all."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


def take(branch: Branch) -> int:
    """Count what this branch's next request has to compute; what is counted here is not counted again."""
    tokens = max(0, len(branch.log) - branch.num_counted)
    branch.num_counted = len(branch.log)
    if branch.before_fork is not None:
        tokens += branch.before_fork.tokens
        branch.before_fork.tokens = 0
        branch.before_fork = None
    return tokens


def look(branches: Iterable[Branch]) -> int:
    """What `take` would give for all of these together; nothing is counted."""
    shared = {branch.before_fork for branch in branches if branch.before_fork is not None}
    return sum(max(0, len(branch.log) - branch.num_counted) for branch in branches) + sum(each.tokens for each in shared)


def fork(branch: Branch, children: Iterable[Branch]) -> None:
    """What the branch holds and nobody has counted is from here on the children's as well."""
    unshared = Unshared(take(branch))
    for each in (branch, *children):
        each.num_counted, each.before_fork = len(branch.log), unshared
