"""All layers of a decoder as one call into the compiled library: no Python, and no allocation, between them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from radixserve_kernels.cpu.packed_linear import PackedLinear
from radixserve_kernels.cpu.packing import PANEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_kernels.cpu.backend import CpuBackend
    from radixserve_kernels.interface import DecoderLayer, Linear


class LayerStack:
    """See Backend.fuse_layers."""

    def __init__(
        self,
        backend: CpuBackend,
        layers: Sequence[DecoderLayer],
        final_norm: torch.Tensor,
        cos_sin: torch.Tensor,
        eps: float,
    ) -> None:
        library = backend.library
        self._backend = backend
        self._run = library.rs_stack_run
        self._dtype = final_norm.dtype
        self._hidden = final_norm.shape[0]
        self._num_positions = cos_sin.shape[0]
        #: The C++ side has pointers into all of these.
        self._kept = (tuple(layers), final_norm, cos_sin)
        inner = _packed(layers[0].down).num_inputs
        self.handle: int = library.rs_stack_create(
            self._hidden, inner, eps, final_norm.data_ptr(), cos_sin.data_ptr(), self._num_positions
        )
        if not self.handle:
            raise MemoryError("no memory for the layers")
        weakref.finalize(self, library.rs_stack_destroy, self.handle)
        for layer in layers:
            norms = (layer.q_norm, layer.k_norm)
            q_norm, k_norm = (0 if norm is None else norm.data_ptr() for norm in norms)
            linears = [_packed(one).handle for one in (layer.qkv, layer.o, layer.gate_up, layer.down)]
            qkv, o, gate_up, down = linears
            if library.rs_stack_add(
                self.handle, layer.attn_norm.data_ptr(), qkv, q_norm, k_norm, o, layer.mlp_norm.data_ptr(), gate_up, down
            ):
                raise MemoryError("no memory for the layers")

    def __call__(self, residual: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """residual [T, hidden] is overwritten; returns [R, hidden]. Raises IndexError for a position that the rotary table lacks."""
        plan, pool = self._backend.prepared
        if residual.dtype is not self._dtype or pool.dtype is not self._dtype:
            raise ValueError(f"activations and KV must be {self._dtype}, not {residual.dtype} and {pool.dtype}")
        tokens = residual.shape[0]
        if tokens != self._backend.num_tokens or positions.shape[0] != tokens or rows.shape[0] > tokens:
            raise ValueError(f"{tokens} rows don't fit the prepared batch of {self._backend.num_tokens} tokens")
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < tokens:
            raise IndexError(f"a row of logits lies outside the {tokens} tokens")
        out = torch.empty((rows.shape[0], self._hidden), dtype=self._dtype)
        error = self._run(
            self.handle,
            plan,
            self._dtype is torch.bfloat16,
            pool.data_ptr(),
            pool.stride(1),
            residual.data_ptr(),
            positions.data_ptr(),
            rows.data_ptr(),
            rows.shape[0],
            out.data_ptr(),
        )
        if error == 1:
            raise IndexError(f"a position lies outside the rotary table of {self._num_positions}")
        if error:
            raise MemoryError("no memory for the step's activations")
        return out


def can_fuse(layers: Sequence[DecoderLayer], dtype: torch.dtype) -> bool:
    """Whether every linear is one of the compiled library's, of whole panels, for activations of `dtype`."""
    return all(
        isinstance(linear, PackedLinear)
        and not linear.num_outputs % PANEL
        and (dtype is torch.bfloat16 or (dtype is torch.float32 and linear.takes_float32))
        for layer in layers
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )


def _packed(linear: Linear) -> PackedLinear:
    assert isinstance(linear, PackedLinear)
    return linear
