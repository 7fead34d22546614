"""Weights from a GGUF file: dequantised with the `gguf` library, or in their own form (gguf_blocks.py)."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np
import torch
from gguf.quants import dequantize

from radixserve_runtime.model.errors import BrokenCheckpointError, UnsupportedModelError
from radixserve_runtime.model.gguf_blocks import split_blocks
from radixserve_runtime.model.weights import Weights, assemble

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from radixserve_kernels.quantized import QuantizedWeight
    from radixserve_runtime.model.architecture import ModelConfig
    from radixserve_runtime.model.gguf_file import GgufFile, TensorInfo
    from radixserve_runtime.model.quantize import Quantizer
    from radixserve_runtime.model.weights import Progress

_CHUNK_ELEMENTS = 1 << 22
"""Elements that are dequantised at a time (16 MiB in float32), which bounds the memory beside the result."""

_JOINED_ROWS = 16

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def load_gguf(
    file: GgufFile,
    config: ModelConfig,
    dtype: torch.dtype,
    progress: Progress | None = None,
    quantizer: Quantizer | None = None,
) -> Weights:
    """All weights in `dtype` on the CPU, matrices as the quantizer makes them. Raises BrokenCheckpointError, and UnsupportedModelError for a quantisation without a reader."""
    weights = assemble(config, _GgufSource(file, config), dtype, progress, quantizer)
    factors = file.tensors.get(_ROPE_FACTORS)
    if factors is not None:
        if factors.shape != (config.head_dim // 2,):
            raise BrokenCheckpointError(f"{file.path}: {_ROPE_FACTORS} is {factors.shape} and not {(config.head_dim // 2,)}")
        weights.rope_factors = torch.from_numpy(np.array(_dequantized(file.raw(factors), factors, file).reshape(-1)))
    return weights


class _GgufSource:
    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._stored = {_canonical(name): name for name in file.tensors if name != _ROPE_FACTORS}
        #: Heads whose rows llama.cpp's converter interleaved (even and odd rotary dimensions side by side): llama alone.
        self._interleaved_heads: dict[str, int] = {}
        if config.architecture == "LlamaForCausalLM":
            self._interleaved_heads = {"q_proj": config.num_q_heads, "k_proj": config.num_kv_heads}

    @property
    def description(self) -> str:
        return str(self._file.path)

    def names(self) -> Collection[str]:
        return self._stored.keys()

    def stored_name(self, name: str) -> str:
        return self._stored.get(name) or _gguf_name(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._stored[name]].shape

    def stored_kind(self, name: str) -> str:
        return str(self._file.tensors[self._stored[name]].kind.name)

    def read_quantized(self, name: str) -> QuantizedWeight:
        tensor = self._file.tensors[self._stored[name]]
        return split_blocks(self._rows(name), tensor.kind.name)

    def _rows(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes [rows, bytes of a row], rotary dimensions half-split."""
        raw = self._file.raw(self._file.tensors[self._stored[name]])
        heads = self._interleaved_heads.get(name.split(".")[-2])
        if heads is not None:  # rows move as bytes, before anything is dequantised
            raw = raw.reshape(heads, -1, 2, raw.shape[1]).swapaxes(1, 2).reshape(raw.shape)
        return raw

    def read_into(self, name: str, out: torch.Tensor) -> None:
        tensor, raw = self._file.tensors[self._stored[name]], self._rows(name)
        rows = len(raw)
        step = max(1, _CHUNK_ELEMENTS * rows // out.numel())
        for start in range(0, rows, step):
            part = _dequantized(raw[start : start + step], tensor, self._file)
            target = out[start : start + step]
            target.copy_(torch.from_numpy(part).view(target.shape))


def _dequantized(raw: NDArray[np.uint8], tensor: TensorInfo, file: GgufFile) -> NDArray[np.float32]:
    """Float32 of some rows, as one flat array that may be written to."""
    try:
        values = dequantize(_longer_rows(raw), tensor.kind)
    except NotImplementedError:
        raise UnsupportedModelError(
            f"{file.path}: tensor {tensor.name!r} is of type {tensor.kind.name}, which has no reader"
        ) from None
    flat: NDArray[np.float32] = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    return flat if flat.flags.writeable else flat.copy()


def _longer_rows(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The library works row by row in Python, so a few long rows take a tenth of the time of many short ones; blocks don't mind."""
    joined = math.gcd(len(raw), _JOINED_ROWS)
    return raw.reshape(len(raw) // joined, -1)


def _canonical(stored: str) -> str:
    """Hugging Face's name; an unknown one stays as it is, to be reported."""
    match = _LAYER_NAME.fullmatch(stored)
    if match is not None and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    stem, _, suffix = stored.rpartition(".")
    return f"{_TOP[stem]}.{suffix}" if stem in _TOP else stored


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    for short, long in _TOP.items():
        if stem == long:
            return f"{short}.{suffix}"
    _, _, layer, inner = stem.split(".", 3)
    short = next(short for short, long in _IN_LAYER.items() if long == inner)
    return f"blk.{layer}.{short}.{suffix}"
