"""The `flashinfer` backend, for CUDA. Not yet run on a GPU: its calls are checked against an emulator of FlashInfer's documented contract."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from radixserve_kernels.interface import AttentionSpec, Backend, RaggedBatch
from radixserve_kernels.paged import TorchPool, check_batch, check_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_kernels.interface import Linear

_WORKSPACE_BYTES = 128 * 1024 * 1024


class FlashInferBackend(Backend):
    """Prefill chunks and decode tokens in one `BatchPrefillWithPagedKVCacheWrapper` plan, pages in the NHD layout.

    Not yet run on a GPU. `module` replaces the flashinfer package (the tests' emulator).
    """

    name = "flashinfer"

    def __init__(self, spec: AttentionSpec, device: str = "cuda", module: Any = None) -> None:
        check_spec(spec)
        self.spec = spec
        self.device = device
        self._flashinfer: Any = module if module is not None else importlib.import_module("flashinfer")
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper: Any = self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self._pool: TorchPool | None = None
        self._batch: RaggedBatch | None = None
        self._planned_for: torch.dtype | None = None
        empty = torch.empty(0, dtype=torch.int32)
        self._last_page_len = self._indices = self._indptr = self._rows = self._positions = empty
        self._indices_on_device = self._indptr_on_device = self._last_on_device = empty

    def allocate_kv(self, num_pages: int, page_size_tokens: int, dtype: torch.dtype) -> None:
        """See Backend: keys and values of a layer are [pages, P, Hkv, D] each."""
        self._pool = TorchPool(self.spec, num_pages, page_size_tokens, dtype, self.device)

    @property
    def kv_pool(self) -> torch.Tensor:
        """[layers, 2, pages, P, Hkv, D]"""
        return self._require_pool().tensor

    def prepare(self, batch: RaggedBatch) -> None:
        """Derives what FlashInfer's plan wants; the plan itself waits for the first `attend`, which knows the dtype of q."""
        pool = self._require_pool()
        check_batch(batch, pool.page_size_tokens)
        self._batch = batch
        self._planned_for = None
        page = pool.page_size_tokens
        # FlashInfer infers a length from its pages, so pages reserved ahead of a sequence's tokens must not be listed.
        used = (batch.kv_len + (page - 1)) // page
        if bool((used > batch.page_indptr.diff()).any()):
            raise ValueError("a sequence has fewer pages than its kv_len needs")
        self._last_page_len = (batch.kv_len - (used - 1) * page).to(torch.int32)
        self._indptr = F.pad(used.cumsum(0), (1, 0)).to(torch.int32)
        starts = batch.page_indptr.tolist()[:-1]
        lists = [batch.page_indices[begin : begin + count] for begin, count in zip(starts, used.tolist(), strict=True)]
        self._indices = torch.cat(lists) if lists else batch.page_indices[:0]
        queries = batch.qo_indptr.diff()
        self._rows = torch.arange(queries.shape[0], dtype=torch.int32).repeat_interleave(queries).to(self.device)
        self._positions = batch.positions.to(self.device)
        # `plan` reads its index tensors on the host; the append kernel needs them on the device.
        self._indices_on_device = self._indices.to(self.device)
        self._indptr_on_device = self._indptr.to(self.device)
        self._last_on_device = self._last_page_len.to(self.device)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See Backend."""
        if self._batch is None:
            raise RuntimeError("no batch: call prepare first")
        cache = self._require_pool().tensor[layer]
        if self._planned_for is not q.dtype:
            self._make_plan(q.dtype, cache.dtype)
        paged = (cache[0], cache[1])
        self._flashinfer.append_paged_kv_cache(
            k.to(cache.dtype).contiguous(),
            v.to(cache.dtype).contiguous(),
            self._rows,
            self._positions,
            paged,
            self._indices_on_device,
            self._indptr_on_device,
            self._last_on_device,
            kv_layout="NHD",
        )
        result: torch.Tensor = self._wrapper.run(q.contiguous(), paged)
        return result

    def _make_plan(self, q_dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
        batch = self._batch
        assert batch is not None
        spec = self.spec
        self._wrapper.plan(
            batch.qo_indptr,
            self._indptr,
            self._indices,
            self._last_page_len,
            spec.num_q_heads,
            spec.num_kv_heads,
            spec.head_dim,
            batch.page_size_tokens,
            causal=True,
            sm_scale=spec.scale,
            # FlashInfer counts the positions to the left of a query, we count the query too.
            window_left=spec.sliding_window - 1 if spec.sliding_window else -1,
            q_data_type=q_dtype,
            kv_data_type=kv_dtype,
        )
        self._planned_for = q_dtype

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """See Backend. In order: a later copy sees what an earlier one wrote."""
        if copies:
            self._require_pool().copy(copies)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Backend."""
        rows = x.reshape(-1, x.shape[-1])
        result: torch.Tensor = self._flashinfer.rmsnorm(rows, weight.to(x.dtype), eps)
        return result.view(x.shape)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Backend. Both inputs are overwritten."""
        x, residual = x.contiguous(), residual.contiguous()
        self._flashinfer.fused_add_rmsnorm(x, residual, weight.to(x.dtype), eps)
        return x, residual

    def rotary(self, q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
        """See Backend. FlashInfer wants heads flattened; a strided view that can't be flattened is rotated as a copy."""
        flat_q, flat_k = q.flatten(1), k.flatten(1)
        self._flashinfer.apply_rope_with_cos_sin_cache_inplace(
            positions.to(self.device), flat_q, flat_k, self.spec.head_dim, cos_sin, is_neox=True
        )
        for view, flat in ((q, flat_q), (k, flat_k)):
            if flat.data_ptr() != view.data_ptr():
                view.copy_(flat.view(view.shape))

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Backend."""
        result: torch.Tensor = self._flashinfer.silu_and_mul(gate_up)
        return result

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """cuBLAS needs no packing."""
        return lambda x: F.linear(x, weight, bias)

    def _require_pool(self) -> TorchPool:
        if self._pool is None:
            raise RuntimeError("no KV pool yet: call allocate_kv first")
        return self._pool
