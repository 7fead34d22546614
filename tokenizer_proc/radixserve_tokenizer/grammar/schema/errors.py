"""Limits of what is worked out."""

from __future__ import annotations

from radixserve_tokenizer.grammar.errors import ConstraintError


class TooComplexError(ConstraintError):
    """The set of values can be described, but not within bounds of time and memory."""

    def __init__(self, what: str, pointer: str = "") -> None:
        self.what = what
        super().__init__(f"the schema is too complex to be enforced ({what}): simplify it", pointer)


def unenforceable(keyword: str, how: str, pointer: str) -> ConstraintError:
    """The error that names a keyword and its place."""
    return ConstraintError(f"keyword '{keyword}' can't be enforced{' ' + how if how else ''}", pointer)
