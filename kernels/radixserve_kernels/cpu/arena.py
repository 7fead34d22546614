"""Where packed weights lie: a few large blocks with huge pages, because a step walks through all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK_BYTES = 32 << 20
_LINE = 128


class Arena:
    """Hands out pieces of blocks. A block lives as long as any piece of it."""

    def __init__(self, prefer_huge_pages: Callable[[int, int], None]) -> None:
        self._prefer_huge_pages = prefer_huge_pages
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def place(self, data: torch.Tensor) -> torch.Tensor:
        """A copy of `data` (uint8, contiguous), of the same shape."""
        size = data.numel()
        if self._used + size > self._block.numel():
            self._block = torch.empty(max(_BLOCK_BYTES, size), dtype=torch.uint8)
            self._prefer_huge_pages(self._block.data_ptr(), self._block.numel())
            self._used = 0
        piece = self._block[self._used : self._used + size].view(data.shape)
        piece.copy_(data)
        self._used += -(-size // _LINE) * _LINE
        return piece
