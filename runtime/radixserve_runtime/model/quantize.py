"""Which matrices of a checkpoint become 8 or 4 bits, and which already are and stay as they are."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Literal

import torch

from radixserve_kernels.quantized import GROUP, QuantizedWeight, quantize_4bit, quantize_8bit
from radixserve_runtime.model.errors import UnsupportedModelError

if TYPE_CHECKING:
    from radixserve_runtime.model.weights import TensorSource

logger = logging.getLogger(__name__)

Quantization = Literal["none", "int8", "int4"]

#: GGUF's types that the kernels read as they are. In 8 bits the types of 4 are unpacked: more would be read than is known.
_KEPT: dict[str, frozenset[str]] = {"int8": frozenset({"Q8_0"}), "int4": frozenset({"Q8_0", "Q4_0", "Q4_1"})}


class Quantizer:
    """For one checkpoint."""

    def __init__(self, quantization: Literal["int8", "int4"]) -> None:
        self._quantization = quantization
        self._kept = _KEPT[quantization]
        self._num_kept: Counter[str] = Counter()
        self._num_changed: Counter[str] = Counter()

    def read(self, source: TensorSource, name: str, shape: tuple[int, ...], *, head: bool = False) -> QuantizedWeight:
        """One matrix. The LM head has 8 bits at least: its errors go straight to the probabilities.

        Raises UnsupportedModelError for a matrix that is no whole number of groups wide.
        """
        if shape[1] % GROUP:
            raise UnsupportedModelError(
                f"{source.description}: {source.stored_name(name)!r} has {shape[1]} inputs, which is no multiple of {GROUP}: "
                "serve this model with --quantization none"
            )
        kind = source.stored_kind(name)
        if kind in self._kept and not (head and kind != "Q8_0"):
            self._num_kept[kind] += 1
            return source.read_quantized(name)
        self._num_changed[kind] += 1
        plain = torch.empty(shape, dtype=torch.float32)
        source.read_into(name, plain)
        return quantize_8bit(plain) if head or self._quantization == "int8" else quantize_4bit(plain)

    def report(self, source: TensorSource) -> None:
        """One line about what was read."""
        parts = [
            f"{count} matrices {kind} {verb}"
            for verb, counts in (
                ("kept as they are", self._num_kept),
                (f"requantised for {self._quantization}", self._num_changed),
            )
            for kind, count in sorted(counts.items())
        ]
        logger.info("%s: %s", source.description, ", ".join(parts))


def make_quantizer(quantization: Quantization) -> Quantizer | None:
    """None for "none"."""
    return None if quantization == "none" else Quantizer(quantization)
