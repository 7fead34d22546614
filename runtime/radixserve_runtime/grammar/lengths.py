"""What each token of a vocabulary adds to the length of a JSON string, or of a text, as mask rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Where a byte finds a JSON string: between characters (or inside one of several bytes), behind a backslash, with so many
#: hexadecimal digits of an escape to come, after its end; and any byte of a text that is no JSON string.
NORMAL, ESCAPE, HEX4, HEX3, HEX2, HEX1, CLOSED, TEXT = range(8)
QUOTE, BACKSLASH = 0x22, 0x5C
#: Marks are the only characters that begin with it and may be in a grammar that counts.
MARK_BYTE = 0xF4
_PADDING = 256


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """(next state, characters that begin) by state and byte."""
    following = np.repeat(np.arange(8, dtype=np.uint8)[:, None], 257, axis=1)
    adds = np.zeros((8, 257), dtype=np.int16)
    begins = np.ones(257, dtype=np.int16)
    begins[0x80:0xC0] = begins[_PADDING] = 0
    adds[NORMAL], adds[TEXT] = begins, begins
    adds[NORMAL, QUOTE] = 0
    following[NORMAL, QUOTE], following[NORMAL, BACKSLASH] = CLOSED, ESCAPE
    following[ESCAPE, :_PADDING] = NORMAL
    following[ESCAPE, ord("u")] = HEX4
    for state in (HEX4, HEX3, HEX2):
        following[state, :_PADDING] = state + 1
    following[HEX1, :_PADDING] = NORMAL
    return following, adds


FOLLOWING, ADDS = _tables()


class TokenLengths:
    """Masks of a vocabulary (b"" for tokens that are no text): int32 [ceil(vocab_size / 32)], bit set = the token is one of them."""

    def __init__(self, vocabulary: Sequence[bytes], num_words: int) -> None:
        self._num_words = num_words
        self._bytes = _padded(vocabulary)
        self._lengths: dict[int, np.ndarray] = {}
        self._longest: dict[int, int] = {}
        self._below: dict[tuple[int, int], torch.Tensor] = {}
        self._opening: dict[int, torch.Tensor] = {}
        self._runs = self._after_quotes()
        self._longest_run = int(self._runs.max(initial=0))
        self.without_marks = self._mask(~(self._bytes == MARK_BYTE).any(axis=1))
        """Tokens that can't be a part of a mark."""
        for state in (NORMAL, TEXT):
            self._of(state)

    def longest(self, state: int) -> int:
        """The most characters that a token adds."""
        self._of(state)
        return self._longest[state]

    def below(self, state: int, limit: int) -> torch.Tensor:
        """Tokens that add fewer than `limit` characters, up to the quote that ends the string if there is one."""
        found = self._below.get((state, limit))
        if found is None:
            found = self._below[state, limit] = self._mask(self._of(state) < limit)
        return found

    def opening(self, limit: int) -> torch.Tensor | None:
        """Tokens with at least so many characters behind a quote in them; None where there are none."""
        if limit > self._longest_run:
            return None
        found = self._opening.get(limit)
        if found is None:
            found = self._opening[limit] = self._mask(self._runs >= limit)
        return found

    def _of(self, state: int) -> np.ndarray:
        if state not in self._lengths:
            states = np.full(len(self._bytes), state, dtype=np.uint8)
            length = np.zeros(len(self._bytes), dtype=np.int16)
            for column in self._bytes.T:
                length += ADDS[states, column]
                states = FOLLOWING[states, column]
            self._lengths[state] = length
            self._longest[state] = int(length.max(initial=0))
        return self._lengths[state]

    def _after_quotes(self) -> np.ndarray:
        """The most characters from any quote to the next: whether it opens or closes is not known."""
        states = np.full(len(self._bytes), CLOSED, dtype=np.uint8)
        run = np.zeros(len(self._bytes), dtype=np.int16)
        most = run.copy()
        for column in self._bytes.T:
            quotes = (column == QUOTE) & ((states == NORMAL) | (states == CLOSED))
            run += ADDS[states, column]
            states = FOLLOWING[states, column]
            run[quotes], states[quotes] = 0, NORMAL
            np.maximum(most, run, out=most)
        return most

    def _mask(self, chosen: np.ndarray) -> torch.Tensor:
        bits = np.zeros(32 * self._num_words, dtype=np.uint8)
        bits[: len(chosen)] = chosen
        return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32).copy())


def _padded(vocabulary: Sequence[bytes]) -> np.ndarray:
    """The tokens' bytes as [tokens, longest], filled up with a value that is no byte."""
    lengths = np.fromiter(map(len, vocabulary), dtype=np.int64, count=len(vocabulary))
    width = int(lengths.max(initial=0))
    found = np.full((len(vocabulary), width), _PADDING, dtype=np.int16)
    found[np.arange(width)[None, :] < lengths[:, None]] = np.frombuffer(b"".join(vocabulary), dtype=np.uint8)
    return found
