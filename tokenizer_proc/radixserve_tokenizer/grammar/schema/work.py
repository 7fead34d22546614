"""How much may be worked out for one schema, counted in steps, so that what is refused does not depend on the machine.

The steps are taken deep inside sets and automata, which know nothing of a schema: the count is of the context, as a decimal
context's precision is.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.schema.errors import TooComplexError

if TYPE_CHECKING:
    from collections.abc import Generator

MAX_STEPS = 1_000_000
"""About half a second's, more than ten times what the largest of 300 schemas of tools takes (benchmarks/tool_samples.py)."""


class _Count:
    def __init__(self, left: int) -> None:
        self.left = left


_count: ContextVar[_Count | None] = ContextVar("_count", default=None)


@contextmanager
def at_most(steps: int) -> Generator[None, None, None]:
    """What is done in here takes no more steps than that, or raises `TooComplexError`."""
    token = _count.set(_Count(steps))
    try:
        yield
    finally:
        _count.reset(token)


def spend(steps: int) -> None:
    """Count steps: an edge of an automaton, a pair of shapes that are compared. Raises `TooComplexError`."""
    count = _count.get()
    if count is None:
        return
    count.left -= steps
    if count.left < 0:
        raise TooComplexError("too many combinations of what it asks for")


def left() -> int | None:
    """Steps that may still be taken."""
    count = _count.get()
    return None if count is None else count.left
