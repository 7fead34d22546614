"""Weights in the order in which the compiled linears read them: panels of 16 outputs (csrc/tile.h describes each kind)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from radixserve_kernels.quantized import GROUP

if TYPE_CHECKING:
    from radixserve_kernels.quantized import QuantizedWeight

PANEL = 16
"""Outputs of a panel."""
BF16, Q8, Q4 = 0, 1, 2
"""Kinds, as the C++ side numbers them."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Some outputs of a layer."""

    kind: int
    num_outputs: int
    panels: torch.Tensor
    """[panels, bytes of a panel] uint8"""


def pack_bfloat16(weight: torch.Tensor) -> Packed:
    """weight [N, K] bfloat16; K is even."""
    rows = _whole_panels(weight)
    panels = rows.view(-1, PANEL, weight.shape[1] // 2, 2).transpose(1, 2).contiguous()
    return Packed(BF16, weight.shape[0], panels.view(torch.uint8).flatten(1))


def pack_quantized(weight: QuantizedWeight) -> Packed:
    """Codes in 8 bits or 4, each group's scales (and minima) before them."""
    num_outputs, k = weight.codes.shape
    groups = k // GROUP
    scales = _panel_scales(weight.scales)
    if weight.minima is None:
        shifted = (_whole_panels(weight.codes).to(torch.int16) + 128).to(torch.uint8)
        codes = shifted.view(-1, PANEL, groups, 8, 4).permute(0, 2, 3, 1, 4).flatten(2)
        return Packed(Q8, num_outputs, torch.cat((scales, codes), dim=2).flatten(1))
    pairs = _whole_panels(weight.codes).view(-1, PANEL, groups, 4, 2, 4).permute(0, 2, 3, 4, 1, 5)
    codes = (pairs[:, :, :, 0] | (pairs[:, :, :, 1] << 4)).flatten(2)
    return Packed(Q4, num_outputs, torch.cat((scales, _panel_scales(weight.minima), codes), dim=2).flatten(1))


def _panel_scales(scales: torch.Tensor) -> torch.Tensor:
    """[N, groups] float16 to [panels, groups, 32] bytes."""
    rows = _whole_panels(scales.to(torch.float16))
    return rows.view(-1, PANEL, scales.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)


def _whole_panels(rows: torch.Tensor) -> torch.Tensor:
    """Rows of zeros after the last, up to a whole panel."""
    missing = -rows.shape[0] % PANEL
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows.contiguous()
