"""A GGUF file's settings as a ModelConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.model.architecture import ModelConfig, RopeScaling
from radixserve_runtime.model.errors import BrokenCheckpointError, UnsupportedArchitectureError, UnsupportedModelError
from radixserve_runtime.model.fields import Fields
from radixserve_runtime.model.hf_config import yarn_mscale

if TYPE_CHECKING:
    from radixserve_runtime.model.gguf_file import GgufFile

#: GGUF's names; Mistral and SmolLM come as "llama".
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

#: Keys of tokens that end a generation: end of sequence, of turn, of message.
_EOS_KEYS = ("eos", "eot", "eom")

_UNSERVED_SCALING_KEYS = ("alpha", "yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor")


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """The model of a GGUF file. Raises as `read_config` does."""
    fields = Fields(file.metadata, file.path)
    name = fields.text("general.architecture")
    if name not in _ARCHITECTURES:
        raise UnsupportedArchitectureError(name, file.path)
    if fields.integer("split.count", 1) > 1:
        raise UnsupportedModelError(f"{file.path} is one part of a split GGUF; merge the parts first (llama-gguf-split --merge)")
    if fields.integer(f"{name}.expert_count", 0) > 0:
        raise UnsupportedArchitectureError(f"{name} with experts", file.path)
    hidden_size = fields.positive(f"{name}.embedding_length")
    num_q_heads = fields.positive(f"{name}.attention.head_count")
    num_kv_heads = fields.positive(f"{name}.attention.head_count_kv", num_q_heads)
    if num_q_heads % num_kv_heads:
        raise BrokenCheckpointError(f"{file.path}: {num_q_heads} query heads can't share {num_kv_heads} KV heads")
    max_context = fields.positive(f"{name}.context_length")
    return ModelConfig(
        architecture=_ARCHITECTURES[name],
        hidden_size=hidden_size,
        num_layers=fields.positive(f"{name}.block_count"),
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(fields, name, hidden_size // num_q_heads),
        intermediate_size=fields.positive(f"{name}.feed_forward_length"),
        vocab_size=_vocab_size(file),
        rms_eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number(f"{name}.rope.freq_base", 10_000.0),
        max_context=max_context,
        rope_scaling=_rope_scaling(fields, name, max_context),
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        sliding_window=fields.integer(f"{name}.attention.sliding_window", 0),
        eos_token_ids=_eos_token_ids(fields),
    )


def _head_dim(fields: Fields, name: str, default: int) -> int:
    head_dim = fields.positive(f"{name}.attention.key_length", default)
    for key in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
        if fields.positive(key, head_dim) != head_dim:
            raise UnsupportedModelError(f"{fields.source}: {key} differs from the head size {head_dim}; that is not supported")
    return head_dim


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise BrokenCheckpointError(f"{file.path} has no tensor 'token_embd.weight': it holds no whole model")
    return embedding.shape[0]


def _rope_scaling(fields: Fields, name: str, max_context: int) -> RopeScaling | None:
    """llama3's frequency factors are a tensor (rope_freqs.weight) and no setting: see Weights.rope_factors."""
    prefix = f"{name}.rope.scaling"
    stretch = _scaling_factor(fields, name)
    kind = fields.text(f"{prefix}.type", "none" if stretch is None else "linear")
    for key in _UNSERVED_SCALING_KEYS:
        if fields.has(f"{prefix}.{key}"):
            raise UnsupportedModelError(f"{fields.source}: {prefix}.{key} is not supported")
    if kind == "none":
        return None
    factor = fields.number(f"{prefix}.factor") if stretch is None else stretch
    if kind == "linear":
        return RopeScaling("linear", factor) if factor != 1.0 else None
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor,
            original_max_context=fields.positive(f"{prefix}.original_context_length", max_context),
            beta_fast=fields.number(f"{prefix}.yarn_beta_fast", 32.0),
            beta_slow=fields.number(f"{prefix}.yarn_beta_slow", 1.0),
            attention_factor=yarn_mscale(factor) * fields.number(f"{prefix}.attn_factor", 1.0),
        )
    raise UnsupportedModelError(f"{fields.source}: rope scaling {kind!r} is not supported, only linear and yarn")


def _scaling_factor(fields: Fields, name: str) -> float | None:
    """By today's key, or by the one of older files, which had no type beside it: it was always linear."""
    for key in (f"{name}.rope.scaling.factor", f"{name}.rope.scale_linear"):
        if fields.has(key):
            return fields.number(key)
    return None


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    keys = [f"tokenizer.ggml.{name}_token_id" for name in _EOS_KEYS]
    return tuple(sorted({fields.integer(key) for key in keys if fields.has(key)}))
