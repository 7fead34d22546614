"""What every backend offers: ragged attention over a paged KV pool, and the fused operators beside it.

Shapes: T tokens of a step (all sequences' new tokens, one after the other), B sequences, Hq query heads, Hkv KV heads
(Hq a multiple of Hkv), D head dimension, P tokens a page. The KV pool of a layer is two tensors [pages, P, Hkv, D].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

#: A linear layer packed for the backend: x [T, K] -> [T, N] in x's dtype.
Linear: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The work of one step: for each sequence, its last `qo_len` tokens attend causally to all `kv_len` tokens so far.

    All index tensors are int32 on the CPU; a backend moves what it needs. `kv_len` counts this step's tokens too.
    """

    qo_indptr: torch.Tensor
    """[B + 1]: sequence b's tokens are rows qo_indptr[b]:qo_indptr[b + 1]."""
    kv_len: torch.Tensor
    """[B]"""
    page_indptr: torch.Tensor
    """[B + 1]: sequence b's pages are page_indices[page_indptr[b]:page_indptr[b + 1]]."""
    page_indices: torch.Tensor
    """[sum of pages]"""
    positions: torch.Tensor
    """[T]: position of each token in its sequence, for rotary embedding."""
    slots: torch.Tensor
    """[T]: page * P + offset, where each token's KV is written."""
    page_size_tokens: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is fixed for a model."""

    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int = 0
    """0: none. Otherwise a query sees the last `sliding_window` positions, itself included."""


class Backend(ABC):
    """Kernels for one model on one device. Not thread-safe: one step at a time."""

    name: str

    @abstractmethod
    def allocate_kv(self, num_pages: int, page_size_tokens: int, dtype: torch.dtype) -> None:
        """Allocate the pool of every layer. Called once. Contents are undefined."""

    @abstractmethod
    def prepare(self, batch: RaggedBatch) -> None:
        """Plan the step. `attend` uses the plan until the next call."""

    @abstractmethod
    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write k, v [T, Hkv, D] at the batch's slots, then attend with q [T, Hq, D]; returns [T, Hq, D] in q's dtype."""

    @abstractmethod
    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """For each (source page, destination page, n): copy the first n tokens' KV, in every layer."""

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., N] / rms(x) * weight, in x's dtype, computed in float32."""

    @abstractmethod
    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual); may overwrite both inputs."""

    @abstractmethod
    def rotary(self, q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
        """Rotate q [T, Hq, D] and k [T, Hkv, D] in place, half-split (Hugging Face) form; cos_sin [max positions, D] is float32: cos then sin, D / 2 each.

        q and k may be strided views of one fused projection (the last two dimensions are contiguous)."""

    @abstractmethod
    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2N] -> silu(first half) * second half, [T, N]."""

    @abstractmethod
    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Pack weight [N, K] once. The original may be freed by the caller afterwards."""
