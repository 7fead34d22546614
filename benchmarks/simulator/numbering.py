"""Token ids for block ids. Prompts are made when their request arrives, and forgotten with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .sessions import Blocks, Request

_MAX_ID = (1 << 31) - 1


class TooManyBlocksError(ValueError):
    """Token ids are 31 bits wide. Simulate fewer requests at once."""


class Ids:
    """Gives out token ids. Every block is one even id, repeated; every stretch of text that no block names is one odd id, repeated.

    So two prompts agree exactly as far as their blocks do, and nothing has to be remembered.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._next_block = 1
        self._next_unique = 0

    def blocks(self, count: int) -> int:
        """Reserve `count` block numbers; returns the first."""
        first = self._next_block
        self._next_block += count
        if 2 * self._next_block > _MAX_ID:
            raise TooManyBlocksError("token ids have run out: simulate fewer requests, or a trace with larger blocks")
        return first

    def unique(self) -> int:
        """A token id that nothing else has."""
        self._next_unique += 1
        if 2 * self._next_unique + 1 > _MAX_ID:
            raise TooManyBlocksError("token ids have run out: simulate fewer requests")
        return 2 * self._next_unique + 1


class Numbering:
    """The token ids of one session: its own blocks, and those that it shares."""

    def __init__(self, ids: Ids, first_block: int, num_shared: int = 0, first_shared: int = 0) -> None:
        self._ids = ids
        self._first_block = first_block
        self._num_shared = num_shared
        self._first_shared = first_shared

    def prompt(self, request: Request, after: Request | None) -> list[int]:
        """A request's prompt. Its last tokens, which no block covers, come from the request `after` it where that one extends it."""
        tokens = self._tokens(request.blocks, 0, request.num_prompt_tokens)
        return self._filled(tokens, request.num_prompt_tokens, len(tokens), request, after)

    def output(self, request: Request, after: Request | None) -> list[int]:
        """What a request draws: the ids that `after` has at that place if it extends this one, unique ones otherwise."""
        return self._filled([], request.num_output_tokens, request.num_prompt_tokens, request, after)

    def _filled(self, tokens: list[int], length: int, position: int, request: Request, after: Request | None) -> list[int]:
        if after is not None and request.is_extended:
            tokens += self._tokens(after.blocks, position, position + length - len(tokens))
        if len(tokens) < length:
            tokens += [self._ids.unique()] * (length - len(tokens))
        return tokens

    def _tokens(self, blocks: Blocks, start: int, end: int) -> list[int]:
        """Tokens [start, end) of a prompt of blocks, as far as these go."""
        size = self._ids.block_tokens
        first, last = start // size, -(-end // size)
        ranges: list[np.ndarray] = []
        position = 0
        for low, high in blocks:
            count = high - low + 1
            if position < last and position + count > first:
                ranges.append(np.arange(low + max(0, first - position), low + min(count, last - position), dtype=np.int64))
            position += count
        if not ranges:
            return []
        numbers = np.concatenate(ranges)
        numbers = np.where(numbers < self._num_shared, numbers + self._first_shared, numbers + self._first_block)
        tokens: list[int] = np.repeat(2 * numbers, size)[start - first * size : end - first * size].tolist()
        return tokens
