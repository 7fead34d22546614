"""GGUF's blocks of 32 values taken apart: Q8_0, Q4_0 and Q4_1 as codes and scales, without loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from radixserve_kernels.quantized import GROUP, QuantizedWeight

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes before a block's codes: float16 scale, and float16 minimum.
_HEADER_BYTES = {"Q8_0": 2, "Q4_0": 2, "Q4_1": 4}
_CODE_BYTES = {"Q8_0": GROUP, "Q4_0": GROUP // 2, "Q4_1": GROUP // 2}
_Q4_0_ZERO = 8
"""The code that stands for 0 in Q4_0."""


def split_blocks(raw: NDArray[np.uint8], kind: str) -> QuantizedWeight:
    """raw [rows, bytes of a row] of one of the three types. Exactly the values that dequantising gives."""
    header, code_bytes = _HEADER_BYTES[kind], _CODE_BYTES[kind]
    blocks = raw.reshape(len(raw), -1, header + code_bytes)
    scales = _halves(blocks[:, :, :2])
    stored = np.ascontiguousarray(blocks[:, :, header:])
    if kind == "Q8_0":
        return QuantizedWeight(torch.from_numpy(stored.view(np.int8).reshape(len(raw), -1)), scales, None)
    # The low nibbles are a block's first half, the high ones its second.
    codes = np.concatenate((stored & 0x0F, stored >> 4), axis=2).reshape(len(raw), -1)
    minima = _halves(blocks[:, :, 2:4]) if kind == "Q4_1" else scales * -_Q4_0_ZERO
    return QuantizedWeight(torch.from_numpy(codes), scales, minima)


def _halves(raw: NDArray[np.uint8]) -> torch.Tensor:
    """[rows, blocks, 2] bytes to [rows, blocks] float16."""
    return torch.from_numpy(np.ascontiguousarray(raw).view(np.float16)[:, :, 0])
