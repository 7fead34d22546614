"""Grammars whose strings have a length: the runtime counts their characters, beside the grammar.

The grammar allows strings of any length and, inside them, marks: `mark(n)` says that the character with number n follows. A string of
at most 200 characters takes no mark(201), one of at least 10 can't end before it took mark(10). Marks come from here alone, exactly
where they are due, so that whatever the parser thinks possible is cut off at the right character, and the rest goes on.

A mask is the grammar's, in which tokens that reach the next mark are those of the grammar after that mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from radixserve_runtime.grammar.lengths import ADDS, CLOSED, FOLLOWING, MARK_BYTE, NORMAL, QUOTE, TEXT, TokenLengths
from radixserve_runtime.grammar.request import RequestGrammar
from radixserve_runtime.protocol import MARK_INSIDE, MARK_TEXT, mark

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Tokens that close one string and begin another are tried one by one, up to so many; of more none is allowed. The text can be
#: written with other tokens.
_MAX_TRIED = 64


class _Place(NamedTuple):
    """Where the text so far ends."""

    state: int = CLOSED
    """Of the string that is counted; CLOSED where there is none."""
    length: int = 0
    """Characters of that string, one that isn't whole included."""
    missing: int = 0
    """Bytes of the last character that are still to come."""

    @property
    def takes_marks(self) -> bool:
        return self.state in (NORMAL, TEXT) and not self.missing


class CountedGrammar(RequestGrammar):
    """Where one request is in a grammar with marks. `counts`: the numbers of the characters that have marks, ascending."""

    def __init__(
        self, matcher: Any, vocabulary: Sequence[bytes], num_words: int, counts: tuple[int, ...], lengths: TokenLengths
    ) -> None:
        super().__init__(matcher, len(vocabulary), num_words)
        self._vocabulary = vocabulary
        self._counts = counts
        self._lengths = lengths
        self._row = torch.zeros(num_words, dtype=torch.int32)
        self._place = _Place(TEXT) if takes(matcher, MARK_TEXT) else _Place()
        self._history: list[tuple[int, _Place]] = []
        """Of each accepted token: steps of the matcher, and the place before."""

    def fill(self, row: torch.Tensor) -> None:
        """See `RequestGrammar.fill`."""
        super().fill(row)
        place = self._place
        if place.state != CLOSED:
            reach = place.length + self._lengths.longest(place.state)
            ahead = [count for count in self._counts if place.length < count <= reach]
            if ahead:
                self._fill_across(row, ahead)
        row &= self._lengths.without_marks
        opening = self._lengths.opening(self._counts[0])
        if opening is not None and place.state != TEXT:
            self._check_openings(row, opening)

    def _fill_across(self, row: torch.Tensor, ahead: list[int]) -> None:
        """Tokens that don't reach a mark as the grammar has them now, those that do as it has them after the mark."""
        place = self._place
        ends = [count - place.length for count in ahead]
        row &= self._lengths.below(place.state, ends[0])
        if not place.takes_marks:
            return  # in the middle of a character: what goes on behind it is left to the next token
        num_steps = 0
        try:
            for index, count in enumerate(ahead):
                if not self._matcher.accept_string(mark(count)):
                    break
                num_steps += 1
                super().fill(self._row)
                self._row &= ~self._lengths.below(place.state, ends[index])
                if index + 1 < len(ahead):
                    self._row &= self._lengths.below(place.state, ends[index + 1])
                row |= self._row
        finally:
            if num_steps:
                self._matcher.rollback(num_steps)

    def _check_openings(self, row: torch.Tensor, opening: torch.Tensor) -> None:
        """Tokens in which a string begins and reaches a mark: whether they are allowed shows when they are tried."""
        self._row.copy_(row)
        self._row &= opening
        if not self._row.any():
            return
        bits = np.unpackbits(self._row.numpy().view(np.uint8), bitorder="little")
        found = bits.nonzero()[0].tolist()
        row &= ~opening
        if len(found) > _MAX_TRIED:
            return
        for token_id in found:
            if self.accept(token_id):
                self.rollback(1)
                word, bit = divmod(token_id, 32)
                row[word] |= 1 << bit if bit < 31 else -(1 << 31)

    def accept(self, token_id: int) -> bool:
        """See `RequestGrammar.accept`."""
        if not 0 <= token_id < self._num_tokens:
            return False
        before = self._place
        data = self._vocabulary[token_id]
        if data and (before.state != CLOSED or QUOTE in data):
            if self.accept_bytes(data):
                return True
            if before.state != CLOSED or takes(self._matcher, data[: data.index(QUOTE) + 1]):
                return False
            # Where the grammar speaks of tokens by their number it takes no bytes; no string begins there.
        if not super().accept(token_id):
            return False
        self._history.append((1, before))
        return True

    def accept_bytes(self, data: bytes) -> bool:
        """Go on with a text, which `rollback` takes for one token; False (and no change) where the grammar doesn't allow it."""
        walk = _Walk(self._matcher, self._counts, self._place)
        if MARK_BYTE in data or not walk.over(data):
            walk.undo()
            return False
        self._history.append((walk.num_steps, self._place))
        self._place = walk.place
        return True

    def forced(self) -> bytes:
        """See `RequestGrammar.forced`."""
        return super().forced().partition(bytes([MARK_BYTE]))[0]

    def rollback(self, num_tokens: int) -> None:
        """See `RequestGrammar.rollback`."""
        if num_tokens <= 0:
            return
        if num_tokens > len(self._history):
            super().rollback(1 + sum(steps for steps, _ in self._history))  # raises
        undone = self._history[-num_tokens:]
        super().rollback(sum(steps for steps, _ in undone))
        del self._history[-num_tokens:]
        self._place = undone[0][1]


def takes(matcher: Any, text: str | bytes) -> bool:
    """Whether a text is accepted here; changes nothing."""
    if not matcher.accept_string(text):
        return False
    matcher.rollback(1)
    return True


class _Walk:
    """One text on its way through a matcher, with the marks that are due in it."""

    def __init__(self, matcher: Any, counts: tuple[int, ...], place: _Place) -> None:
        self._matcher = matcher
        self._counts = counts
        self.place = place
        self.num_steps = 0
        """Of the matcher so far."""

    def over(self, data: bytes) -> bool:
        """False where the grammar doesn't allow it; what was accepted by then is left."""
        state, count, missing = self.place
        start = 0
        for index, byte in enumerate(data):
            if state == CLOSED:
                if byte == QUOTE:
                    if not self._accept(data[start : index + 1]):
                        return False
                    start = index + 1
                    if takes(self._matcher, MARK_INSIDE):
                        state, count, missing = NORMAL, 0, 0
                continue
            if ADDS[state, byte]:
                count += 1
                if count in self._counts:
                    if not self._accept(data[start:index]) or not self._accept(mark(count)):
                        return False
                    start = index
                missing = (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            elif missing:
                missing -= 1
            state = int(FOLLOWING[state, byte])
        self.place = _Place(state, count, missing)
        return self._accept(data[start:])

    def _accept(self, piece: bytes | str) -> bool:
        if not piece:
            return True
        accepted = bool(self._matcher.accept_string(piece))
        self.num_steps += accepted
        return accepted

    def undo(self) -> None:
        """Take back what was accepted."""
        if self.num_steps:
            self._matcher.rollback(self.num_steps)
