"""A decoder's weights as it wants them, from any source of named tensors.

Both loaders offer their tensors under Hugging Face's names; what must be there, its shapes and its order are decided here, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from radixserve_runtime.model.errors import BrokenCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from radixserve_kernels.quantized import QuantizedWeight
    from radixserve_runtime.model.architecture import ModelConfig
    from radixserve_runtime.model.quantize import Quantizer

    Progress = Callable[[str, float], None]
    #: A matrix [outputs, inputs]: plain, or quantised parts that stand one after the other in the outputs.
    Matrix = torch.Tensor | tuple[QuantizedWeight, ...]

_LISTED = 8
"""How many names an error shows."""


@dataclass(slots=True)
class LayerWeights:
    """One layer. Matrices are [outputs, inputs]; biases are None where the model has none."""

    attn_norm: torch.Tensor
    """[hidden]"""
    qkv: Matrix
    """[q + k + v rows, hidden], heads one after the other, rotary dimensions half-split."""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    """[head_dim]"""
    k_norm: torch.Tensor | None
    """[head_dim]"""
    o: Matrix
    """[hidden, q rows]"""
    o_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    """[hidden]"""
    gate_up: Matrix
    """[2 * intermediate, hidden]: gate, then up."""
    gate_up_bias: torch.Tensor | None
    down: Matrix
    """[hidden, intermediate]"""
    down_bias: torch.Tensor | None


@dataclass(slots=True)
class Weights:
    """A whole model. The decoder takes the layers out one by one as it packs them, so use it once."""

    embedding: torch.Tensor
    """[vocab, hidden]"""
    layers: list[LayerWeights]
    final_norm: torch.Tensor
    """[hidden]"""
    lm_head: Matrix | None
    """[vocab, hidden]; None: the embedding."""
    rope_factors: torch.Tensor | None = None
    """[head_dim / 2] float32 that divide the rotary frequencies (llama3's scaling in GGUF files)."""


class TensorSource(Protocol):
    """Named tensors of a checkpoint, under Hugging Face's names."""

    @property
    def description(self) -> str:
        """What to call it in an error: the file or folder."""
        ...

    def names(self) -> Collection[str]:
        """All tensors, but those that every loader may ignore."""
        ...

    def stored_name(self, name: str) -> str:
        """The checkpoint's own name for one of Hugging Face's."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as stored."""
        ...

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Copy (dequantise, convert) into `out`, which has the stored shape."""
        ...

    def stored_kind(self, name: str) -> str:
        """The type that it is stored in, as the format names it."""
        ...

    def read_quantized(self, name: str) -> QuantizedWeight:
        """A matrix in its own form, for the kinds that the quantizer keeps."""
        ...


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model must have, by Hugging Face's names, with its shape."""
    hidden, inner = config.hidden_size, config.intermediate_size
    layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    linears = [
        ("self_attn.q_proj", config.q_size, hidden, config.qkv_bias),
        ("self_attn.k_proj", config.kv_size, hidden, config.qkv_bias),
        ("self_attn.v_proj", config.kv_size, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, config.q_size, config.o_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ]
    for name, rows, columns, has_bias in linears:
        layer[f"{name}.weight"] = (rows, columns)
        if has_bias:
            layer[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (config.head_dim,)
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        tensors["lm_head.weight"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        tensors.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return tensors


def check_tensors(config: ModelConfig, source: TensorSource) -> None:
    """Raise BrokenCheckpointError unless the source holds exactly what the model needs, in the right shapes."""
    expected = expected_tensors(config)
    present = set(source.names())
    if config.tied_embeddings:
        present.discard("lm_head.weight")  # some tied checkpoints store it again
    missing = [source.stored_name(name) for name in expected if name not in present]
    unexpected = [source.stored_name(name) for name in sorted(present - expected.keys())]
    problems: list[str] = []
    if missing:
        problems.append(f"{len(missing)} tensors are missing: {_listed(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} tensors don't belong to {config.architecture}: {_listed(unexpected)}")
    wrong = [
        f"{source.stored_name(name)} is {source.shape(name)} and not {shape}"
        for name, shape in expected.items()
        if name in present and source.shape(name) != shape
    ]
    if wrong:
        problems.append(f"{len(wrong)} tensors have the wrong shape: {_listed(wrong)}")
    if problems:
        raise BrokenCheckpointError(f"{source.description}: {'; '.join(problems)}")


def assemble(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    progress: Progress | None = None,
    quantizer: Quantizer | None = None,
) -> Weights:
    """Read everything into fused tensors of `dtype` on the CPU, one tensor at a time; with a quantizer, matrices as it makes them."""
    check_tensors(config, source)
    sizes = expected_tensors(config)

    def read(*names: str) -> torch.Tensor:
        """Tensors stacked along their rows."""
        rows = [sizes[name][0] for name in names]
        out = torch.empty((sum(rows), *sizes[names[0]][1:]), dtype=dtype)
        start = 0
        for name, count in zip(names, rows, strict=True):
            source.read_into(name, out[start : start + count])
            start += count
        return out

    def read_if(wanted: bool, *names: str) -> torch.Tensor | None:
        return read(*names) if wanted else None

    def matrix(*names: str, head: bool = False) -> Matrix:
        if quantizer is None:
            return read(*names)
        return tuple(quantizer.read(source, name, sizes[name], head=head) for name in names)

    embedding = read("model.embed_tokens.weight")
    lm_head: Matrix | None = None
    if not config.tied_embeddings:
        lm_head = matrix("lm_head.weight", head=True)
    elif quantizer is not None:
        lm_head = matrix("model.embed_tokens.weight", head=True)
    layers: list[LayerWeights] = []
    for i in range(config.num_layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        layers.append(
            LayerWeights(
                attn_norm=read(f"model.layers.{i}.input_layernorm.weight"),
                qkv=matrix(*(f"{attn}.{x}_proj.weight" for x in "qkv")),
                qkv_bias=read_if(config.qkv_bias, *(f"{attn}.{x}_proj.bias" for x in "qkv")),
                q_norm=read_if(config.qk_norm, f"{attn}.q_norm.weight"),
                k_norm=read_if(config.qk_norm, f"{attn}.k_norm.weight"),
                o=matrix(f"{attn}.o_proj.weight"),
                o_bias=read_if(config.o_bias, f"{attn}.o_proj.bias"),
                mlp_norm=read(f"model.layers.{i}.post_attention_layernorm.weight"),
                gate_up=matrix(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
                gate_up_bias=read_if(config.mlp_bias, f"{mlp}.gate_proj.bias", f"{mlp}.up_proj.bias"),
                down=matrix(f"{mlp}.down_proj.weight"),
                down_bias=read_if(config.mlp_bias, f"{mlp}.down_proj.bias"),
            )
        )
        if progress is not None:
            progress("reading weights", (i + 1) / config.num_layers)
    if quantizer is not None:
        quantizer.report(source)
    return Weights(embedding, layers, read("model.norm.weight"), lm_head)


def _listed(names: list[str]) -> str:
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
