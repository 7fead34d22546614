"""Linear layers of the compiled library: bfloat16 weights, and weights in 8 or 4 bits."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixserve_kernels.cpu.packing import BF16, PANEL

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence

    from radixserve_kernels.cpu.arena import Arena
    from radixserve_kernels.cpu.packing import Packed


class LinearFactory:
    """Makes the layers of one backend, which share memory for activations: one runs at a time."""

    def __init__(self, library: ctypes.CDLL, arena: Arena, num_threads: int) -> None:
        self.library = library
        self.arena = arena
        self.num_threads = num_threads
        self.workspace: int = library.rs_workspace_create()
        if not self.workspace:
            raise MemoryError("no memory for a workspace")
        weakref.finalize(self, library.rs_workspace_destroy, self.workspace)

    def make(self, parts: Sequence[Packed], num_inputs: int, bias: torch.Tensor | None) -> PackedLinear:
        """Parts stand one after the other in the output; all but the last are whole panels."""
        return PackedLinear(self, parts, num_inputs, bias)


class PackedLinear:
    """x [T, K] -> [T, N]. A row's bits depend on that row alone."""

    def __init__(self, factory: LinearFactory, parts: Sequence[Packed], num_inputs: int, bias: torch.Tensor | None) -> None:
        library = factory.library
        self._factory = factory
        self._apply = library.rs_linear_apply
        self.num_inputs = num_inputs
        self.num_outputs = sum(part.num_outputs for part in parts)
        self.takes_float32 = all(part.kind != BF16 for part in parts)
        self._width = -(-self.num_outputs // PANEL) * PANEL
        self.handle: int = library.rs_linear_create(num_inputs)
        if not self.handle:
            raise MemoryError("no memory for a linear layer")
        weakref.finalize(self, library.rs_linear_destroy, self.handle)
        #: The C++ side has pointers into these.
        self._kept: list[torch.Tensor] = []
        first = 0
        for part in parts:
            own = None if bias is None else bias[first : first + part.num_outputs].float()
            first += part.num_outputs
            self._add(part, own)

    def _add(self, part: Packed, bias: torch.Tensor | None) -> None:
        panels = self._factory.arena.place(part.panels)
        self._kept.append(panels)
        pointer = 0
        if bias is not None:
            padded = F.pad(bias, (0, -part.num_outputs % PANEL)).contiguous()
            self._kept.append(padded)
            pointer = padded.data_ptr()
        add = self._factory.library.rs_linear_add
        if add(self.handle, part.kind, part.num_outputs, panels.data_ptr(), panels.shape[1], pointer):
            raise MemoryError("no memory for a linear layer")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """In x's dtype."""
        return self.run(x, x.dtype)

    def run(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """In `dtype`: that of x, or float32."""
        bf16_x = x.dtype is torch.bfloat16
        if not bf16_x and not (self.takes_float32 and x.dtype is torch.float32):
            raise ValueError(f"this layer takes bfloat16{' or float32' if self.takes_float32 else ''}, not {x.dtype}")
        if x.shape[1] != self.num_inputs:
            raise ValueError(f"this layer takes {self.num_inputs} inputs, not {x.shape[1]}")
        if x.stride(1) != 1:
            x = x.contiguous()
        rows = x.shape[0]
        out = torch.empty((rows, self._width), dtype=dtype)
        if rows and self._apply(
            self.handle,
            self._factory.workspace,
            bf16_x,
            x.data_ptr(),
            x.stride(0),
            rows,
            dtype is torch.bfloat16,
            out.data_ptr(),
            self._width,
            self._factory.num_threads,
        ):
            raise MemoryError("no memory for a linear layer's activations")
        return out if self._width == self.num_outputs else out[:, : self.num_outputs]
