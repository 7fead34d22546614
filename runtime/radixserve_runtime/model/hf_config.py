"""A Hugging Face folder's config.json as a ModelConfig. Defaults are those of transformers."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from radixserve_runtime.model.architecture import ModelConfig, RopeScaling
from radixserve_runtime.model.errors import BrokenCheckpointError, UnsupportedArchitectureError, UnsupportedModelError
from radixserve_runtime.model.fields import Fields

if TYPE_CHECKING:
    from pathlib import Path


class _Family(NamedTuple):
    """What one architecture's config.json may say."""

    architecture: str
    qkv_bias: bool = False
    """Always there."""
    attention_bias: bool = False
    """`attention_bias` puts one on q, k, v and o."""
    mlp_bias: bool = False
    """`mlp_bias` is read."""
    qk_norm: bool = False
    head_dim: int = 0
    """Default; 0: hidden size over heads."""
    window: Literal["none", "always", "opt-in"] = "none"
    """Whether `sliding_window` holds: never, whenever it isn't null, or with `use_sliding_window` alone."""


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", attention_bias=True, mlp_bias=True),
    "mistral": _Family("MistralForCausalLM", window="always"),
    "qwen2": _Family("Qwen2ForCausalLM", qkv_bias=True, window="opt-in"),
    "qwen3": _Family("Qwen3ForCausalLM", attention_bias=True, qk_norm=True, head_dim=128, window="opt-in"),
}
_BY_ARCHITECTURE = {family.architecture: family for family in _FAMILIES.values()}

_DEFAULT_WINDOW = 4096
_DEFAULT_THETA = 10_000.0


def config_from_folder(folder: Path) -> ModelConfig:
    """The model of a Hugging Face folder. Raises as `read_config` does."""
    fields = Fields(read_json(folder / "config.json"), folder / "config.json")
    family = _family(fields)
    _refuse_what_is_not_served(fields)
    num_layers = fields.positive("num_hidden_layers")
    hidden_size = fields.positive("hidden_size")
    num_q_heads = fields.positive("num_attention_heads")
    num_kv_heads = fields.positive("num_key_value_heads", num_q_heads)
    if num_q_heads % num_kv_heads:
        raise BrokenCheckpointError(f"{fields.source}: {num_q_heads} query heads can't share {num_kv_heads} KV heads")
    rope = _rope_fields(fields)
    scaling = _rope_scaling(fields, rope)
    attention_bias = family.attention_bias and fields.boolean("attention_bias", False)
    return ModelConfig(
        architecture=family.architecture,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.positive("head_dim", family.head_dim or hidden_size // num_q_heads),
        intermediate_size=fields.positive("intermediate_size"),
        vocab_size=fields.positive("vocab_size"),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", _DEFAULT_THETA)),
        max_context=_max_context(fields, scaling),
        rope_scaling=scaling,
        tied_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias or attention_bias,
        o_bias=attention_bias,
        mlp_bias=family.mlp_bias and fields.boolean("mlp_bias", False),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(fields, family, num_layers),
        eos_token_ids=_eos_token_ids(folder, fields),
    )


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file; BrokenCheckpointError names the file."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BrokenCheckpointError(f"{path} is missing: is {path.parent} a Hugging Face model folder?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BrokenCheckpointError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise BrokenCheckpointError(f"{path} must hold a JSON object")
    return value


def _family(fields: Fields) -> _Family:
    names = fields.raw("architectures")
    if isinstance(names, list) and names:
        for name in names:
            if isinstance(name, str) and name in _BY_ARCHITECTURE:
                return _BY_ARCHITECTURE[name]
        raise UnsupportedArchitectureError(", ".join(map(str, names)), fields.source)
    model_type = fields.text("model_type", "(none named)")
    if model_type not in _FAMILIES:
        raise UnsupportedArchitectureError(model_type, fields.source)
    return _FAMILIES[model_type]


def _refuse_what_is_not_served(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{fields.source}: activation {activation!r} is not supported, only 'silu'")
    quantization = fields.group("quantization_config")
    if quantization is not None:
        method = quantization.text("quant_method", "unknown")
        raise UnsupportedModelError(
            f"{fields.source}: weights quantised with {method!r} are not supported; use an unquantised or GGUF checkpoint"
        )


def _rope_fields(fields: Fields) -> Fields:
    """transformers 5 writes `rope_parameters`; earlier ones wrote `rope_theta` and `rope_scaling`."""
    rope = fields.group("rope_parameters") or fields.group("rope_scaling") or Fields({}, fields.source)
    partial = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedModelError(f"{fields.source}: partial_rotary_factor {partial} is not supported, only 1")
    return rope


def _rope_scaling(fields: Fields, rope: Fields) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    original = fields.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", fields.positive("max_position_embeddings", 1)),
    )
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            rope.number("factor"),
            original_max_context=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    if kind == "yarn":
        factor = rope.number("factor", fields.positive("max_position_embeddings") / original)
        return RopeScaling(
            "yarn",
            factor,
            original_max_context=original,
            beta_fast=rope.number("beta_fast", 32.0),
            beta_slow=rope.number("beta_slow", 1.0),
            attention_factor=_yarn_attention_factor(rope, factor),
            truncate=rope.boolean("truncate", True),
        )
    raise UnsupportedModelError(f"{fields.source}: rope scaling {kind!r} is not supported, only linear, llama3 and yarn")


def _yarn_attention_factor(rope: Fields, factor: float) -> float:
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    if rope.raw("mscale") and rope.raw("mscale_all_dim"):
        return yarn_mscale(factor, rope.number("mscale")) / yarn_mscale(factor, rope.number("mscale_all_dim"))
    return yarn_mscale(factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's attention temperature (Peng et al. 2023, section 3.4) for a context stretched by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _max_context(fields: Fields, scaling: RopeScaling | None) -> int:
    """Linear and yarn stretch the context; llama3 configurations already state the stretched one."""
    stated = fields.positive("max_position_embeddings", 2048)
    if scaling is None or scaling.kind == "llama3":
        return stated
    base = scaling.original_max_context if scaling.kind == "yarn" else stated
    return max(stated, int(base * scaling.factor))


def _sliding_window(fields: Fields, family: _Family, num_layers: int) -> int:
    if family.window == "none" or (family.window == "opt-in" and not fields.boolean("use_sliding_window", False)):
        return 0
    if "sliding_window" not in fields:
        window = _DEFAULT_WINDOW
    elif not fields.has("sliding_window"):
        return 0
    else:
        window = fields.positive("sliding_window")
    if family.window == "always":
        return window
    first = fields.integer("max_window_layers", 28)
    sliding = [kind == "sliding_attention" for kind in _layer_types(fields)] or [i >= first for i in range(num_layers)]
    if any(sliding) and not all(sliding):
        raise UnsupportedModelError(f"{fields.source}: a sliding window on some layers alone is not supported")
    return window if all(sliding) else 0


def _layer_types(fields: Fields) -> list[object]:
    types = fields.raw("layer_types")
    return types if isinstance(types, list) else []


def _eos_token_ids(folder: Path, fields: Fields) -> tuple[int, ...]:
    """Of config.json and, where it exists, generation_config.json: chat models often add their turn end there."""
    ids = _ids(fields)
    generation = folder / "generation_config.json"
    if generation.exists():
        ids |= _ids(Fields(read_json(generation), generation))
    return tuple(sorted(ids))


def _ids(fields: Fields) -> set[int]:
    value = fields.raw("eos_token_id")
    if value is None:
        return set()
    values: list[object] = value if isinstance(value, list) else [value]
    if not all(type(v) is int and v >= 0 for v in values):
        raise BrokenCheckpointError(f"{fields.source}: 'eos_token_id' is {value!r}; it must be a token id or a list of them")
    return {v for v in values if isinstance(v, int)}
