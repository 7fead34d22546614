"""Carries out a step's plan on the model: index tensors in, rows of logits out.

A forward that raises is run again in halves until the culprit is alone: KV writes are the same both times, so the
neighbours lose nothing but time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import torch

from radixserve_kernels.interface import RaggedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from radixserve_runtime.scheduler.plan import Chunk, StepPlan

logger = logging.getLogger(__name__)


class Model(Protocol):
    """What the executor needs of a decoder."""

    def forward(self, token_ids: torch.Tensor, batch: RaggedBatch, logit_rows: torch.Tensor) -> torch.Tensor:
        """Logits float32 [R, vocab] of the rows asked for."""
        ...


class PageCopier(Protocol):
    """What the executor needs of a kernel backend."""

    def copy_pages(self, copies: Seq[tuple[int, int, int]]) -> None:
        """Copy the first n tokens of page a to page b, in every layer."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkLogits:
    """Logits of one chunk: first the prompt positions whose next token's log-probability is wanted, then the position to draw from."""

    chunk: Chunk
    prompt_rows: torch.Tensor
    """[n, vocab]: row i predicts token `first_predicted + i`."""
    first_predicted: int
    draw_rows: torch.Tensor | None
    """[1 + n, vocab], when the chunk completes a sequence that is to go on: the newest token's row, and one for each of n draft tokens."""


@dataclass(frozen=True, slots=True)
class ChunkFailure:
    """The forward fails whenever this chunk takes part."""

    chunk: Chunk
    error: Exception


@dataclass(frozen=True, slots=True)
class _Wanted:
    prompt: range
    num_draws: int

    @property
    def count(self) -> int:
        return len(self.prompt) + self.num_draws


def _wanted(chunk: Chunk) -> _Wanted:
    """Positions of the chunk whose logits are needed."""
    sequence = chunk.sequence
    prompt = range(0)
    if sequence.logprobs_from >= 1:
        first = max(chunk.start, sequence.logprobs_from - 1)
        prompt = range(first, max(first, min(chunk.end, sequence.num_prompt_tokens - 1)))
    return _Wanted(prompt, 1 + sequence.num_draft if chunk.completes and sequence.max_tokens > 0 else 0)


class Executor:
    """Runs plans on one model."""

    def __init__(self, model: Model, copier: PageCopier, page_size_tokens: int) -> None:
        self._model = model
        self._copier = copier
        self._page_size = page_size_tokens

    def run(self, plan: StepPlan) -> list[ChunkLogits | ChunkFailure]:
        """One result a chunk, in the plan's order."""
        if plan.copies:
            self._copier.copy_pages(plan.copies)
        return self._run_or_split(plan.chunks)

    def _run_or_split(self, chunks: tuple[Chunk, ...]) -> list[ChunkLogits | ChunkFailure]:
        try:
            return self._forward(chunks)
        except Exception as error:
            if len(chunks) == 1:
                logger.exception("the forward pass failed for request %d alone", chunks[0].sequence.request_id)
                return [ChunkFailure(chunks[0], error)]
            logger.warning("a forward pass of %d sequences failed (%s); running it again in halves", len(chunks), error)
        middle = len(chunks) // 2
        return self._run_or_split(chunks[:middle]) + self._run_or_split(chunks[middle:])

    def _forward(self, chunks: tuple[Chunk, ...]) -> list[ChunkLogits | ChunkFailure]:
        token_ids = torch.tensor(
            list(chain.from_iterable(c.sequence.token_ids[c.start : c.end] for c in chunks)), dtype=torch.int64
        )
        wanted = [_wanted(chunk) for chunk in chunks]
        rows: list[int] = []
        offset = 0
        for chunk, want in zip(chunks, wanted, strict=True):
            rows.extend(offset + position - chunk.start for position in want.prompt)
            rows.extend(range(offset + chunk.count - want.num_draws, offset + chunk.count))
            offset += chunk.count
        logits = self._model.forward(token_ids, self._batch(chunks), torch.tensor(rows, dtype=torch.int64))
        return list(self._split(chunks, wanted, logits))

    @staticmethod
    def _split(chunks: tuple[Chunk, ...], wanted: list[_Wanted], logits: torch.Tensor) -> list[ChunkLogits | ChunkFailure]:
        results: list[ChunkLogits | ChunkFailure] = []
        offset = 0
        for chunk, want in zip(chunks, wanted, strict=True):
            end = offset + len(want.prompt)
            draws = logits[end : end + want.num_draws] if want.num_draws else None
            results.append(ChunkLogits(chunk, logits[offset:end], want.prompt.start + 1, draws))
            offset += want.count
        return results

    def _batch(self, chunks: tuple[Chunk, ...]) -> RaggedBatch:
        size = self._page_size
        qo, kv_len, indptr = [0], [], [0]
        pages: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for chunk in chunks:
            used = chunk.sequence.pages[: -(-chunk.end // size)]
            pages.extend(used)
            indptr.append(len(pages))
            qo.append(qo[-1] + chunk.count)
            kv_len.append(chunk.end)
            positions.extend(range(chunk.start, chunk.end))
            slots.extend(used[p // size] * size + p % size for p in range(chunk.start, chunk.end))

        def index(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32)

        return RaggedBatch(index(qo), index(kv_len), index(indptr), index(pages), index(positions), index(slots), size)
