"""Rotary embedding tables (Su et al. 2021) with the ways of stretching them that the Llama family uses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from radixserve_runtime.model.architecture import ModelConfig, RopeScaling


def cos_sin_table(config: ModelConfig, factors: torch.Tensor | None = None) -> torch.Tensor:
    """[max_context, head_dim] float32: for each position head_dim / 2 cosines, then as many sines.

    `factors` [head_dim / 2] divide the frequencies (GGUF's form of llama3's scaling).
    """
    inv_freq = inverse_frequencies(config)
    if factors is not None:
        inv_freq = inv_freq / factors
    # Products in float32 on purpose: models were trained with them, and other engines compute them so.
    angles = torch.arange(config.max_context, dtype=torch.float32)[:, None] * inv_freq
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    return table * config.rope_scaling.attention_factor if config.rope_scaling is not None else table


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """[head_dim / 2] float32: radians a position, scaled as the config says."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    periods = config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return 1.0 / periods
    if scaling.kind == "linear":
        return 1.0 / periods / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(1.0 / periods, scaling)
    return _yarn(periods, scaling, config)


def _llama3(inv_freq: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Slow dimensions are divided by the factor, fast ones stay, those between are blended (Llama 3.1)."""
    wavelengths = 2 * math.pi / inv_freq
    slow = scaling.original_max_context / scaling.low_freq_factor
    fast = scaling.original_max_context / scaling.high_freq_factor
    turns = scaling.original_max_context / wavelengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - blend) * inv_freq / scaling.factor + blend * inv_freq
    return torch.where(wavelengths > slow, inv_freq / scaling.factor, torch.where(wavelengths < fast, inv_freq, blended))


def _yarn(periods: torch.Tensor, scaling: RopeScaling, config: ModelConfig) -> torch.Tensor:
    """YaRN (Peng et al. 2023): a ramp over the dimensions, from unchanged to interpolated frequencies."""

    def dimension(turns: float) -> float:
        """The (fractional) dimension that turns so often within the original context."""
        return (
            config.head_dim * math.log(scaling.original_max_context / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))
        )

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    if low == high:
        high += 0.001  # keeps the ramp finite
    ramp = ((torch.arange(config.head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return ramp / (scaling.factor * periods) + (1 - ramp) / periods
