"""Weights in 8 and 4 bits: codes with a scale for each group of 32 inputs, as in GGUF's Q8_0, Q4_0 and Q4_1.

Activations are coded too, by each row's own groups of 32, where a backend multiplies integers: a result never depends on the
rows beside it. A scale for a whole row of 576 or more inputs costs several percent of perplexity on small models; groups don't.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 32
"""Inputs that share a scale."""


class GroupSizeError(ValueError):
    """A matrix whose rows are no whole number of groups."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [N, K]: scale * code, or scale * code + minimum."""

    codes: torch.Tensor
    """[N, K]: int8 (8 bits, -128 to 127), or uint8 (4 bits, 0 to 15)."""
    scales: torch.Tensor
    """[N, K / 32] float16"""
    minima: torch.Tensor | None
    """[N, K / 32] float16 with 4 bits, None with 8."""

    @property
    def num_bits(self) -> int:
        """8 or 4."""
        return 8 if self.minima is None else 4

    def to(self, device: torch.device | str) -> QuantizedWeight:
        """The same on another device."""
        minima = None if self.minima is None else self.minima.to(device)
        return QuantizedWeight(self.codes.to(device), self.scales.to(device), minima)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[N, K]"""
        values = _grouped(self.codes.float()) * self.scales.float().unsqueeze(-1)
        if self.minima is not None:
            values += self.minima.float().unsqueeze(-1)
        return values.flatten(1).to(dtype)


def quantize_8bit(weight: torch.Tensor) -> QuantizedWeight:
    """By each group's largest magnitude. Raises GroupSizeError."""
    groups = _grouped(weight.float())
    scales = (groups.abs().amax(dim=-1) / 127).to(torch.float16)
    codes = (groups * _inverse(scales)).round_().clamp_(-127, 127).to(torch.int8)
    return QuantizedWeight(codes.flatten(1), scales, None)


def quantize_4bit(weight: torch.Tensor) -> QuantizedWeight:
    """By each group's smallest and largest value. Raises GroupSizeError."""
    groups = _grouped(weight.float())
    low, high = groups.aminmax(dim=-1)
    minima = low.to(torch.float16)
    scales = ((high - minima.float()) / 15).clamp_(min=0).to(torch.float16)
    codes = ((groups - minima.float().unsqueeze(-1)) * _inverse(scales)).round_().clamp_(0, 15).to(torch.uint8)
    return QuantizedWeight(codes.flatten(1), scales, minima)


def _grouped(rows: torch.Tensor) -> torch.Tensor:
    if rows.shape[1] % GROUP:
        raise GroupSizeError(f"a matrix of {rows.shape[1]} inputs can't be quantised in groups of {GROUP}")
    return rows.view(rows.shape[0], -1, GROUP)


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    """1 / scale for each group, 0 where the scale is."""
    wide = scales.float()
    return torch.where(wide > 0, 1 / wide, torch.zeros_like(wide)).unsqueeze(-1)
