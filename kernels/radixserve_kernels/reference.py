"""The `reference` backend: plain PyTorch in float32, the oracle of every other backend's tests. Simple before fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixserve_kernels.interface import AttentionSpec, Backend, RaggedBatch
from radixserve_kernels.paged import TorchPool, check_batch, check_spec, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_kernels.interface import Linear


class ReferenceBackend(Backend):
    """One sequence at a time, one dense softmax each. Any head dimension, dtype and device."""

    name = "reference"

    def __init__(self, spec: AttentionSpec, device: str = "cpu") -> None:
        check_spec(spec)
        self.spec = spec
        self.device = device
        self._pool: TorchPool | None = None
        self._batch: RaggedBatch | None = None
        self._slots = torch.empty(0, dtype=torch.int64)
        self._pages: list[torch.Tensor] = []

    def allocate_kv(self, num_pages: int, page_size_tokens: int, dtype: torch.dtype) -> None:
        """See Backend."""
        self._pool = TorchPool(self.spec, num_pages, page_size_tokens, dtype, self.device)

    @property
    def kv_pool(self) -> torch.Tensor:
        """[layers, 2, pages, P, Hkv, D]"""
        return self._require_pool().tensor

    def prepare(self, batch: RaggedBatch) -> None:
        """Raises ValueError for a batch that contradicts itself or the pool."""
        pool = self._require_pool()
        self._batch = None
        check_batch(batch, pool.page_size_tokens)
        self._check_lengths(batch, pool)
        self._slots = batch.slots.to(self.device, torch.int64)
        bounds = batch.page_indptr.tolist()
        pages = batch.page_indices.to(self.device, torch.int64)
        self._pages = [
            pages[begin : begin - (-kv_len // pool.page_size_tokens)]
            for begin, kv_len in zip(bounds[:-1], batch.kv_len.tolist(), strict=True)
        ]
        self._batch = batch

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See Backend."""
        batch = self._batch
        if batch is None:
            raise RuntimeError("no batch: call prepare first")
        pool = self._require_pool()
        pool.write(layer, self._slots, k, v)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        rows = batch.qo_indptr.tolist()
        for pages, begin, end, kv_len in zip(self._pages, rows[:-1], rows[1:], batch.kv_len.tolist(), strict=True):
            keys, values = pool.gather(layer, pages, kv_len)
            positions = torch.arange(kv_len - (end - begin), kv_len, device=q.device)
            out[begin:end] = self._attend_one(q[begin:end], keys, values, positions)
        return out

    def _attend_one(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """q [n, Hq, D], k and v [m, Hkv, D], positions [n] of the queries; returns [n, Hq, D] in q's dtype."""
        group = self.spec.num_q_heads // self.spec.num_kv_heads
        k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * self.spec.scale
        mask = visible(positions, k.shape[0], self.spec.sliding_window)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return torch.einsum("hnm,mhd->nhd", weights, v).to(q.dtype)

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """See Backend. In order: a later copy sees what an earlier one wrote."""
        if copies:
            self._require_pool().copy(copies)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Backend."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Backend. The sum is rounded to x's dtype before it is normalised; inputs are left alone."""
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rotary(self, q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
        """See Backend. Raises IndexError for a position that the table lacks."""
        if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < cos_sin.shape[0]:
            raise IndexError(f"a position lies outside the rotary table of {cos_sin.shape[0]}")
        cosine, sine = cos_sin[positions.to(cos_sin.device, torch.int64), None].chunk(2, dim=-1)
        for x in (q, k):
            a, b = x.float().chunk(2, dim=-1)
            x.copy_(torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1))

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Backend."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """A plain `F.linear`; the weight is kept as it is."""
        return lambda x: F.linear(x, weight, bias)

    def _require_pool(self) -> TorchPool:
        if self._pool is None:
            raise RuntimeError("no KV pool yet: call allocate_kv first")
        return self._pool

    def _check_lengths(self, batch: RaggedBatch, pool: TorchPool) -> None:
        queries = batch.qo_indptr.diff()
        if int(batch.qo_indptr[0]) != 0 or int(batch.qo_indptr[-1]) != batch.slots.shape[0] or bool((queries < 1).any()):
            raise ValueError("qo_indptr isn't an increasing offset table that starts at 0 and ends at the number of rows")
        if bool((batch.kv_len < queries).any()):
            raise ValueError("a sequence's kv_len is smaller than its number of new tokens")
        if bool((batch.page_indptr.diff() * pool.page_size_tokens < batch.kv_len).any()):
            raise ValueError("a sequence has fewer pages than its kv_len needs")
        for name, indices, end in (
            ("page index", batch.page_indices, pool.num_pages),
            ("slot", batch.slots, pool.num_pages * pool.page_size_tokens),
        ):
            if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < end:
                raise ValueError(f"a {name} lies outside the pool")
