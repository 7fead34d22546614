"""Linear layers on the CPU: weights reordered once for oneDNN, through two private PyTorch operators kept behind this file.

Reordering makes them 1.3 to 2 times as fast as `F.linear` at decode sizes, in bfloat16 and in float32. A row's result must not
depend on how many rows stand beside it (the same answer alone or among others). With reordered weights bfloat16 keeps that
at any number of rows, and float32 from two rows on, so that a single float32 row is computed as two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from radixserve_kernels.interface import Linear

# oneDNN compiles a kernel for each number of rows and keeps it, half a megabyte and some milliseconds each: beyond a decode
# batch rows are made up to a multiple, so that prompts of all lengths share a few kernels.
_EXACT_ROWS = 32
_ROW_MULTIPLE = 16

# The number of rows that oneDNN is told to expect. 16 was as good as any at 1 to 32 rows, and lost nothing at 256.
_EXPECTED_ROWS = 16


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """A callable x [T, K] -> [T, N] for weight [N, K] and bias [N] or None; plain `F.linear` where it can't be reordered."""
    packed = _reorder(weight)
    if packed is None:
        return _PlainLinear(weight, bias)
    if weight.dtype is torch.float32:
        return _PackedFloat32(packed, bias)
    return _packed_bfloat16(packed, bias)


def _reorder(weight: torch.Tensor) -> torch.Tensor | None:
    if weight.device.type != "cpu" or weight.dtype not in (torch.bfloat16, torch.float32):
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_ROWS)
        torch.ops.mkldnn._linear_pointwise(weight.new_zeros(2, weight.shape[1]), packed, None, "none", [], "")
    except (AttributeError, RuntimeError):  # the operator is missing, or this processor has no kernel for the dtype
        return None
    return packed


def _packed_bfloat16(packed: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    # A closure over the operator's overload: nothing is looked up by name at each call.
    operator = torch.ops.mkldnn._linear_pointwise.default
    scalars: list[object] = []

    def apply(x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        if rows > _EXACT_ROWS:
            x = _made_up(x)
        result: torch.Tensor = operator(x, packed, bias, "none", scalars, "")
        return result[:rows] if rows > _EXACT_ROWS else result

    return apply


class _PackedFloat32:
    """oneDNN has another kernel for one row, which rounds otherwise: a single row is computed twice."""

    def __init__(self, packed: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = packed
        self._bias = bias
        self._operator = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            pair: torch.Tensor = self._operator(x.expand(2, -1).contiguous(), self._packed, self._bias, "none", [], "")
            return pair[:1]
        rows = x.shape[0]
        if rows > _EXACT_ROWS:
            x = _made_up(x)
        result: torch.Tensor = self._operator(x, self._packed, self._bias, "none", [], "")
        return result[:rows] if rows > _EXACT_ROWS else result


def _made_up(x: torch.Tensor) -> torch.Tensor:
    """Rows of zeros after the last, up to a multiple."""
    missing = -x.shape[0] % _ROW_MULTIPLE
    return F.pad(x, (0, 0, 0, missing)) if missing else x


class _PlainLinear:
    """Few rows take other kernels in `F.linear` (1, 2 and 3 rows in float32): they are padded to a multiple of 8."""

    _MULTIPLE = 8

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        missing = -rows % self._MULTIPLE
        if self._weight.dtype is not torch.float32 or not missing:
            return F.linear(x, self._weight, self._bias)
        return F.linear(F.pad(x, (0, 0, 0, missing)), self._weight, self._bias)[:rows]
