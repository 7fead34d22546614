"""The `cpu` backend: compiled attention and fused operators, on PyTorch's own threads."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

import torch

from radixserve_kernels.cpu.arena import Arena
from radixserve_kernels.cpu.build import default_cache_dir
from radixserve_kernels.cpu.library import load_library
from radixserve_kernels.cpu.linear import pack_linear
from radixserve_kernels.cpu.packed_linear import LinearFactory, PackedLinear
from radixserve_kernels.cpu.packing import PANEL, pack_bfloat16, pack_quantized
from radixserve_kernels.cpu.stack import LayerStack, can_fuse
from radixserve_kernels.interface import AttentionSpec, Backend, RaggedBatch
from radixserve_kernels.paged import check_batch, check_copies, check_spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve_kernels.cpu.processor import Isa
    from radixserve_kernels.interface import DecoderLayer, Linear
    from radixserve_kernels.quantized import QuantizedWeight

logger = logging.getLogger(__name__)

_PLAN_ERRORS = {
    1: "qo_indptr or page_indptr isn't an increasing offset table that starts at 0 and ends at the number of rows",
    2: "a sequence's kv_len is smaller than its number of new tokens",
    3: "a sequence has fewer pages than its kv_len needs",
    4: "a page index lies outside the pool",
    5: "a slot lies outside the pool",
}


class UnsupportedShapeError(ValueError):
    """A head dimension that the compiled kernels don't know."""


class CpuBackend(Backend):
    """C++ kernels with AVX2, AVX-512 or AVX-512 with bf16 products, whichever is the best that runs here.

    Activations and KV may each be float32 or bfloat16; sums are float32. A row of any result depends on its own sequence
    alone: not on the batch, the chunks of its prompt or the number of threads.

    Raises KernelBuildError where the kernels can't be compiled, UnsupportedShapeError for a head dimension that isn't a multiple of 16.
    """

    name = "cpu"

    def __init__(
        self,
        spec: AttentionSpec,
        num_threads: int = 0,
        cache_dir: Path | None = None,
        *,
        isa: Isa | None = None,
        cascade: bool = True,
    ) -> None:
        """`cascade`: sequences whose page tables begin alike share passes over these pages. Results are the same bits without."""
        check_spec(spec)
        if spec.head_dim % 16:
            raise UnsupportedShapeError(
                f"the compiled kernels need a head dimension that is a multiple of 16, not {spec.head_dim}: choose `torch` or `auto`"
            )
        self.spec = spec
        self.num_threads = num_threads or torch.get_num_threads()
        library, self.isa = load_library(cache_dir or default_cache_dir(), isa)
        self._attend, self._build_plan = library.rs_attend, library.rs_plan_build
        self._planned_keys = library.rs_plan_keys
        self._rms_norm, self._add_rms_norm = library.rs_rms_norm, library.rs_add_rms_norm
        self._rotary, self._silu_mul = library.rs_rotary, library.rs_silu_mul
        self._copy_pages, self._prefer_huge_pages = library.rs_copy_pages, library.rs_prefer_huge_pages
        self._plan: int = library.rs_plan_create(
            spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.scale, spec.sliding_window, self.num_threads, cascade
        )
        if not self._plan:
            raise MemoryError("no memory for an attention plan")
        weakref.finalize(self, library.rs_plan_destroy, self._plan)
        self.library = library
        self._linears = LinearFactory(library, Arena(library.rs_prefer_huge_pages), self.num_threads)
        self._pool: torch.Tensor | None = None
        self._planes: list[tuple[int, int]] = []
        self._kv_bf16 = 0
        self._num_tokens = -1
        logger.info("CPU kernels: %s, %d threads", self.isa, self.num_threads)

    def allocate_kv(self, num_pages: int, page_size_tokens: int, dtype: torch.dtype) -> None:
        """One tensor [layers, 2, pages, Hkv, P, D]: what one head reads of a page is one run of memory."""
        spec = self.spec
        self._kv_bf16 = _is_bf16(dtype)
        shape = (spec.num_layers, 2, num_pages, spec.num_kv_heads, page_size_tokens, spec.head_dim)
        pool = torch.empty(shape, dtype=dtype)
        self._prefer_huge_pages(pool.data_ptr(), pool.numel() * pool.element_size())
        # Now, not when it is first used: then all layers' keys and values come to a new huge page in one step, and with 30
        # layers the operating system clears 120 MB in the middle of it.
        pool.zero_()
        self._pool = pool
        self._planes = [(pool[i, 0].data_ptr(), pool[i, 1].data_ptr()) for i in range(spec.num_layers)]

    @property
    def kv_pool(self) -> torch.Tensor:
        """[layers, 2, pages, P, Hkv, D], a view of memory in the order [layers, 2, pages, Hkv, P, D]."""
        if self._pool is None:
            raise RuntimeError("no KV pool yet: call allocate_kv first")
        return self._pool.transpose(3, 4)

    def prepare(self, batch: RaggedBatch) -> None:
        """Cut the step into work for threads. Raises ValueError for a batch that contradicts itself or the pool."""
        pool = self.kv_pool
        check_batch(batch, pool.shape[3])
        tokens = batch.slots.shape[0]
        self._num_tokens = -1
        error = self._build_plan(
            self._plan,
            batch.kv_len.shape[0],
            tokens,
            batch.qo_indptr.data_ptr(),
            batch.kv_len.data_ptr(),
            batch.page_indptr.data_ptr(),
            batch.page_indices.data_ptr(),
            batch.slots.data_ptr(),
            batch.page_size_tokens,
            pool.shape[2],
        )
        if error == 6:
            raise MemoryError("no memory for the attention plan")
        if error:
            raise ValueError(_PLAN_ERRORS[error])
        self._num_tokens = tokens

    @property
    def prepared(self) -> tuple[int, torch.Tensor]:
        """The plan's handle, and the pool [layers, 2, pages, Hkv, P, D]. Raises RuntimeError where nothing is prepared."""
        if self._pool is None or self._num_tokens < 0:
            raise RuntimeError("no batch: call prepare first")
        return self._plan, self._pool

    @property
    def num_tokens(self) -> int:
        """Tokens of the prepared step; -1: none is prepared."""
        return self._num_tokens

    @property
    def planned_keys(self) -> int:
        """Keys that the prepared step reads, summed over KV heads and passes: each pass that sequences share counts once."""
        return int(self._planned_keys(self._plan))

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See Backend. The heads of a token must lie side by side (else they are copied); tokens may be strided."""
        spec = self.spec
        dim = spec.head_dim
        tokens = self._num_tokens
        heads, kv_heads = (tokens, spec.num_q_heads, dim), (tokens, spec.num_kv_heads, dim)
        if q.shape != heads or k.shape != kv_heads or v.shape != kv_heads:
            raise ValueError(
                f"q, k, v {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} don't fit the prepared batch: {heads}"
            )
        if not q.dtype == k.dtype == v.dtype:
            raise ValueError(f"q, k and v must share a dtype, not {q.dtype}, {k.dtype}, {v.dtype}")
        q_stride, k_stride, v_stride = q.stride(), k.stride(), v.stride()
        if not (q_stride[1:] == k_stride[1:] == v_stride[1:] == (dim, 1)):
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            q_stride, k_stride, v_stride = q.stride(), k.stride(), v.stride()
        out = torch.empty(heads, dtype=q.dtype)
        pool_k, pool_v = self._planes[layer]
        self._attend(
            self._plan,
            _is_bf16(q.dtype),
            self._kv_bf16,
            pool_k,
            pool_v,
            q.data_ptr(),
            q_stride[0],
            k.data_ptr(),
            k_stride[0],
            v.data_ptr(),
            v_stride[0],
            out.data_ptr(),
        )
        return out

    def copy_pages(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """See Backend. In order: a later copy sees what an earlier one wrote."""
        if not copies:
            return
        pool = self.kv_pool
        layers, _, pages, page_size, heads, dim = pool.shape
        check_copies(copies, pages, page_size)
        token_bytes = dim * pool.element_size()
        head_bytes = page_size * token_bytes
        table = torch.tensor(copies, dtype=torch.int64)
        self._copy_pages(
            pool.data_ptr(),
            layers * 2,
            pages * heads * head_bytes,
            heads,
            head_bytes,
            token_bytes,
            table.data_ptr(),
            len(copies),
            self.num_threads,
        )

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Backend. A strided [T, H, N] view is read in place."""
        width = x.shape[-1]
        if x.is_contiguous():
            outer, inner, outer_stride, inner_stride = x.numel() // width, 1, width, 0
        elif x.dim() == 3 and x.stride(2) == 1:
            outer, inner, outer_stride, inner_stride = x.shape[0], x.shape[1], x.stride(0), x.stride(1)
        else:
            return self.rms_norm(x.contiguous(), weight, eps)
        weight = _weight_for(x, weight)
        out = torch.empty(x.shape, dtype=x.dtype)
        self._rms_norm(
            _is_bf16(x.dtype),
            _is_bf16(weight.dtype),
            x.data_ptr(),
            outer_stride,
            inner_stride,
            weight.data_ptr(),
            out.data_ptr(),
            outer,
            inner,
            width,
            eps,
            self.num_threads,
        )
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Backend. Both inputs are overwritten and returned, unless they had to be copied to be contiguous."""
        if x.dtype != residual.dtype or x.shape != residual.shape:
            raise ValueError("x and residual must have the same shape and dtype")
        x, residual = x.contiguous(), residual.contiguous()
        weight = _weight_for(x, weight)
        width = x.shape[-1]
        self._add_rms_norm(
            _is_bf16(x.dtype),
            _is_bf16(weight.dtype),
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            x.numel() // width,
            width,
            eps,
            self.num_threads,
        )
        return x, residual

    def rotary(self, q: torch.Tensor, k: torch.Tensor, cos_sin: torch.Tensor, positions: torch.Tensor) -> None:
        """See Backend. Raises IndexError for a position that the table lacks."""
        tokens, heads, dim = q.shape
        q_stride, k_stride = q.stride(), k.stride()
        if not (q_stride[1:] == k_stride[1:] == (dim, 1)):
            raise ValueError("the last two dimensions of q and k must be contiguous: rotary works in place")
        if q.dtype != k.dtype or k.shape[0] != tokens or k.shape[2] != dim:
            raise ValueError("q and k must have the same dtype, number of tokens and head dimension")
        if cos_sin.dtype != torch.float32 or cos_sin.shape[1] != dim or not cos_sin.is_contiguous():
            raise ValueError(f"cos_sin must be contiguous float32 [positions, {dim}]")
        if positions.dtype != torch.int32 or positions.shape[0] != tokens:
            raise ValueError(f"positions must be int32 [{tokens}]")
        outside = self._rotary(
            _is_bf16(q.dtype),
            q.data_ptr(),
            q_stride[0],
            heads,
            k.data_ptr(),
            k_stride[0],
            k.shape[1],
            dim,
            cos_sin.data_ptr(),
            cos_sin.shape[0],
            positions.data_ptr(),
            tokens,
            self.num_threads,
        )
        if outside:
            raise IndexError(f"a position lies outside the rotary table of {cos_sin.shape[0]}")

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See Backend. Rows may be strided."""
        if gate_up.stride(1) != 1:
            gate_up = gate_up.contiguous()
        rows, width = gate_up.shape
        out = torch.empty((rows, width // 2), dtype=gate_up.dtype)
        self._silu_mul(
            _is_bf16(gate_up.dtype), gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), rows, width // 2, self.num_threads
        )
        return out

    def pack_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """See Backend. bfloat16 has a kernel of its own; float32 is oneDNN's (cpu/linear.py)."""
        if weight.dtype is torch.bfloat16 and weight.shape[1] % 2 == 0:
            return self._linears.make([pack_bfloat16(weight)], weight.shape[1], bias)
        return pack_linear(weight, bias)

    def pack_quantized(self, parts: Sequence[QuantizedWeight], bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
        """See Backend. Codes stay codes, and activations become codes by row and group."""
        if any(part.codes.shape[0] % PANEL for part in parts[:-1]):
            return super().pack_quantized(parts, bias, dtype)
        return self._linears.make([pack_quantized(part) for part in parts], parts[0].codes.shape[1], bias)

    def logits(self, head: Linear, x: torch.Tensor) -> torch.Tensor:
        """See Backend. Not rounded to bfloat16 on the way."""
        return head.run(x, torch.float32) if isinstance(head, PackedLinear) else super().logits(head, x)

    def fuse_layers(
        self, layers: Sequence[DecoderLayer], final_norm: torch.Tensor, cos_sin: torch.Tensor, eps: float
    ) -> LayerStack | None:
        """See Backend. Where every linear is the library's own: all but plain float32."""
        return LayerStack(self, layers, final_norm, cos_sin, eps) if can_fuse(layers, final_norm.dtype) else None


def _is_bf16(dtype: torch.dtype) -> int:
    if dtype is torch.bfloat16:
        return 1
    if dtype is torch.float32:
        return 0
    raise ValueError(f"the cpu backend knows float32 and bfloat16, not {dtype}")


def _weight_for(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"a norm's weight must have {x.shape[-1]} values, not {tuple(weight.shape)}")
    if weight.dtype == x.dtype or weight.dtype is torch.float32:
        return weight
    return weight.float()
