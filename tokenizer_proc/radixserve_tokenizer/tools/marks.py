"""Marks between which models write calls and reasoning: ordinary text for some tokenizers, one control token for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.patterns import literal_rule

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark. Where it is a control token, its text written out is no mark: no user text can become one."""

    text: str
    token_id: int = -1
    """-1: it is text."""

    @property
    def is_token(self) -> bool:
        """Whether it is a control token."""
        return self.token_id >= 0

    @property
    def raw(self) -> bytes:
        """Its bytes in the output; a control token has none."""
        return b"" if self.is_token else self.text.encode()

    @property
    def rule(self) -> str:
        """It as an EBNF expression."""
        return f"Token({self.token_id})" if self.is_token else literal_rule(self.text)


def mark(text: str, special: Mapping[str, int]) -> Mark:
    """The mark with this text, in a tokenizer with these control tokens."""
    return Mark(text, special.get(text, -1))


def stand_in(token_id: int) -> bytes:
    """Bytes that stand for a control token in grammars: a grammar may name the token by number only where it has bytes at all.

    They are no UTF-8, so nothing that grammars say about characters matches them.
    """
    return b"\xff" + str(token_id).encode()
