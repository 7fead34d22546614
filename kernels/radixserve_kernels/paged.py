"""What the backends share about paged KV: checks of what they are given, and the plain PyTorch pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_kernels.interface import AttentionSpec, RaggedBatch


def check_spec(spec: AttentionSpec) -> None:
    """Raises ValueError for a specification that no kernel can serve."""
    if spec.num_kv_heads < 1 or spec.num_q_heads % spec.num_kv_heads:
        raise ValueError(f"{spec.num_q_heads} query heads are no multiple of {spec.num_kv_heads} KV heads")
    if spec.head_dim < 2 or spec.head_dim % 2:
        raise ValueError(f"the head dimension must be even, not {spec.head_dim}")
    if not spec.scale > 0:
        raise ValueError(f"the attention scale must be positive, not {spec.scale}")
    if spec.sliding_window < 0:
        raise ValueError(f"the sliding window must be 0 (none) or positive, not {spec.sliding_window}")


def check_batch(batch: RaggedBatch, page_size_tokens: int) -> None:
    """Raises ValueError unless the index tensors are contiguous int32 on the CPU, of shapes that fit each other and the pool."""
    if batch.page_size_tokens != page_size_tokens:
        raise ValueError(f"the batch has pages of {batch.page_size_tokens} tokens, the pool of {page_size_tokens}")
    tensors = {
        "qo_indptr": batch.qo_indptr,
        "kv_len": batch.kv_len,
        "page_indptr": batch.page_indptr,
        "page_indices": batch.page_indices,
        "positions": batch.positions,
        "slots": batch.slots,
    }
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.int32 or tensor.device.type != "cpu" or tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(f"{name} must be a contiguous int32 vector on the CPU")
    sequences = batch.kv_len.shape[0]
    if batch.qo_indptr.shape[0] != sequences + 1 or batch.page_indptr.shape[0] != sequences + 1:
        raise ValueError("qo_indptr and page_indptr must have one entry more than kv_len")
    if batch.positions.shape != batch.slots.shape:
        raise ValueError("positions and slots must have one entry for each token")
    if int(batch.page_indptr[-1]) > batch.page_indices.shape[0]:
        raise ValueError("page_indptr reaches beyond page_indices")


def check_copies(copies: Sequence[tuple[int, int, int]], num_pages: int, page_size_tokens: int) -> None:
    """Raises ValueError for a copy that leaves the pool or a page."""
    for source, destination, count in copies:
        if not (0 <= source < num_pages and 0 <= destination < num_pages and 0 <= count <= page_size_tokens):
            raise ValueError(
                f"can't copy {count} tokens from page {source} to {destination}: {num_pages} pages of {page_size_tokens}"
            )


class TorchPool:
    """KV of every layer as one tensor [layers, 2, pages, P, Hkv, D]."""

    def __init__(self, spec: AttentionSpec, num_pages: int, page_size_tokens: int, dtype: torch.dtype, device: str) -> None:
        shape = (spec.num_layers, 2, num_pages, page_size_tokens, spec.num_kv_heads, spec.head_dim)
        self.tensor = torch.empty(shape, dtype=dtype, device=device)
        self.num_pages = num_pages
        self.page_size_tokens = page_size_tokens

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """k, v [T, Hkv, D] go to `slots` [T]."""
        rows = self.tensor[layer].flatten(1, 2)
        rows[0].index_copy_(0, slots, k.to(rows.dtype))
        rows[1].index_copy_(0, slots, v.to(rows.dtype))

    def gather(self, layer: int, pages: torch.Tensor, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv_len, Hkv, D] of one sequence."""
        k, v = self.tensor[layer].index_select(1, pages).flatten(1, 2)[:, :kv_len]
        return k, v

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """See Backend.copy_pages."""
        check_copies(copies, self.num_pages, self.page_size_tokens)
        for source, destination, count in copies:
            self.tensor[:, :, destination, :count] = self.tensor[:, :, source, :count].clone()


def visible(positions: torch.Tensor, kv_len: int, sliding_window: int) -> torch.Tensor:
    """[queries, kv_len]: which keys the queries at `positions` see."""
    keys = torch.arange(kv_len, device=positions.device)
    mask = keys[None, :] <= positions[:, None]
    if sliding_window:
        mask &= keys[None, :] > positions[:, None] - sliding_window
    return mask
