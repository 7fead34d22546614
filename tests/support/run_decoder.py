"""Driving a decoder directly: sequences of token ids in, logits out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from radixserve_kernels.interface import RaggedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.model.decoder import Decoder


@dataclass
class Runner:
    """Sequences by number, each with pages of its own in the pool, handed out in a scattered order."""

    decoder: Decoder
    num_pages: int = 64
    page_size_tokens: int = 16
    lengths: dict[int, int] = field(default_factory=dict)
    pages: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decoder.backend.allocate_kv(self.num_pages, self.page_size_tokens, self.decoder.dtype)
        self._free = list(range(self.num_pages))[::-2] + list(range(self.num_pages))[::-1][1::2]

    def step(self, work: Sequence[tuple[int, Sequence[int]]], all_logits: bool = False) -> torch.Tensor:
        """Append each sequence's new tokens; returns the logits after its last one (or after every one), [R, vocab]."""
        batch, ends = self._batch(work)
        tokens = torch.tensor([token for _, tokens in work for token in tokens], dtype=torch.int64)
        rows = torch.arange(len(tokens)) if all_logits else torch.tensor(ends, dtype=torch.int64) - 1
        return self.decoder.forward(tokens, batch, rows)

    def drop(self, sequence: int) -> None:
        """Give its pages back."""
        self._free += self.pages.pop(sequence)
        del self.lengths[sequence]

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The most likely continuation, whatever end tokens it holds. Runs alone, and leaves nothing in the pool."""
        output: list[int] = []
        step: Sequence[int] = prompt
        for _ in range(num_tokens):
            output.append(int(self.step([(-1, step)]).argmax(dim=-1)[0]))
            step = output[-1:]
        self.drop(-1)
        return output

    def _batch(self, work: Sequence[tuple[int, Sequence[int]]]) -> tuple[RaggedBatch, list[int]]:
        size = self.page_size_tokens
        ends: list[int] = []
        kv_len: list[int] = []
        page_ends: list[int] = []
        page_indices: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for sequence, tokens in work:
            start = self.lengths.get(sequence, 0)
            end = self.lengths[sequence] = start + len(tokens)
            pages = self.pages.setdefault(sequence, [])
            while len(pages) * size < end:
                pages.append(self._free.pop())
            ends.append((ends[-1] if ends else 0) + len(tokens))
            kv_len.append(end)
            page_indices += pages
            page_ends.append(len(page_indices))
            positions += range(start, end)
            slots += [pages[i // size] * size + i % size for i in range(start, end)]

        def tensor(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32)

        return RaggedBatch(
            qo_indptr=tensor([0, *ends]),
            kv_len=tensor(kv_len),
            page_indptr=tensor([0, *page_ends]),
            page_indices=tensor(page_indices),
            positions=tensor(positions),
            slots=tensor(slots),
            page_size_tokens=size,
        ), ends
