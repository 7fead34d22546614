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

    from radixserve_kernels.quantized import QuantizedWeight

#: A linear layer packed for the backend: x [T, K] -> [T, N] in x's dtype.
Linear: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
#: All layers of a decoder on the prepared batch: (embeddings [T, hidden], positions [T] int32, rows [R] int64) -> [R, hidden], the
#: normed rows whose logits are wanted; at most T of them. The embeddings may be overwritten.
LayerStack: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"


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


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer: its linears packed by the backend, its norms in the activations' dtype."""

    attn_norm: torch.Tensor
    """[hidden]"""
    qkv: Linear
    q_norm: torch.Tensor | None
    """[head_dim]"""
    k_norm: torch.Tensor | None
    """[head_dim]"""
    o: Linear
    mlp_norm: torch.Tensor
    """[hidden]"""
    gate_up: Linear
    down: Linear


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

    def pack_quantized(self, parts: Sequence[QuantizedWeight], bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
        """Pack weights that stand one after the other in the output, for activations of `dtype`. Unpacked to `dtype` unless a backend can do better."""
        import torch

        return self.pack_linear(torch.cat([part.dequantize(dtype) for part in parts]), bias)

    def logits(self, head: Linear, x: torch.Tensor) -> torch.Tensor:
        """head(x) in float32, for a head that this backend has packed."""
        return head(x).float()

    def fuse_layers(
        self, layers: Sequence[DecoderLayer], final_norm: torch.Tensor, cos_sin: torch.Tensor, eps: float
    ) -> LayerStack | None:
        """All layers in one call, with the results of the operators above; None where the caller must run them one by one.

        cos_sin as in `rotary`. Ends with the final norm."""
        return None
