"""Reading a checkpoint's own description: what each family says, and what is refused before any weight is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from radixserve_runtime.model.config import (
    BrokenCheckpointError,
    RopeScaling,
    UnsupportedArchitectureError,
    UnsupportedModelError,
    read_config,
)
from tests.support.tiny_model import ARCHITECTURES, tiny_config, write_tiny_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve_runtime.model.config import ModelConfig


def write(folder: Path, config: dict[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(folder: Path, arch: str = "llama", **overrides: object) -> ModelConfig:
    return read_config(write(folder, tiny_config(arch, **overrides)))  # type: ignore[arg-type]


def without(config: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_family(tmp_path: Path, arch: str) -> None:
    config = read(tmp_path, arch)
    assert config.architecture == ARCHITECTURES[arch]
    assert (config.hidden_size, config.num_layers, config.num_q_heads, config.num_kv_heads) == (64, 2, 4, 2)
    assert (config.head_dim, config.intermediate_size, config.vocab_size, config.max_context) == (16, 128, 512, 4096)
    assert config.qkv_bias == (arch == "qwen2")
    assert not config.o_bias
    assert config.qk_norm == (arch == "qwen3")
    assert config.sliding_window == 0
    assert config.eos_token_ids == (2,)


def test_smollm2_as_its_folder_describes_it(tmp_path: Path) -> None:
    config = read_config(
        write(
            tmp_path,
            {
                "architectures": ["LlamaForCausalLM"],
                "eos_token_id": 2,
                "hidden_act": "silu",
                "hidden_size": 576,
                "intermediate_size": 1536,
                "is_llama_config": True,
                "max_position_embeddings": 8192,
                "model_type": "llama",
                "num_attention_heads": 9,
                "num_hidden_layers": 30,
                "num_key_value_heads": 3,
                "rms_norm_eps": 1e-05,
                "rope_scaling": None,
                "rope_theta": 100000,
                "tie_word_embeddings": True,
                "vocab_size": 49152,
            },
        )
    )
    assert (config.head_dim, config.rope_theta, config.tied_embeddings) == (64, 100_000.0, True)


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    bare = without(tiny_config("llama"), "head_dim", "num_key_value_heads", "rope_theta", "rms_norm_eps", "tie_word_embeddings")
    config = read_config(write(tmp_path, bare))
    assert (config.head_dim, config.num_kv_heads, config.rope_theta, config.rms_eps) == (16, 4, 10_000.0, 1e-6)
    assert not config.tied_embeddings
    assert read_config(write(tmp_path, without(tiny_config("qwen3"), "head_dim"))).head_dim == 128
    assert read_config(write(tmp_path, without(tiny_config("mistral"), "sliding_window"))).sliding_window == 4096


def test_biases_follow_the_family(tmp_path: Path) -> None:
    llama = read(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, True)
    mistral = read(tmp_path, "mistral", attention_bias=True)
    assert (mistral.qkv_bias, mistral.o_bias) == (False, False)
    qwen3 = read(tmp_path, "qwen3", attention_bias=True)
    assert (qwen3.qkv_bias, qwen3.o_bias) == (True, True)


def test_sliding_windows(tmp_path: Path) -> None:
    assert read(tmp_path, "mistral", sliding_window=32).sliding_window == 32
    assert read(tmp_path, "qwen2", sliding_window=32).sliding_window == 0
    assert read(tmp_path, "qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=0).sliding_window == 32
    assert read(tmp_path, "qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=2).sliding_window == 0
    assert read(tmp_path, "llama", sliding_window=32).sliding_window == 0
    with pytest.raises(UnsupportedModelError, match="some layers"):
        read(tmp_path, "qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=1)
    with pytest.raises(UnsupportedModelError, match="some layers"):
        read(tmp_path, "qwen3", use_sliding_window=True, layer_types=["full_attention", "sliding_attention"])


def test_rope_in_the_form_of_transformers_5(tmp_path: Path) -> None:
    base = without(tiny_config("llama"), "rope_theta")
    assert read_config(write(tmp_path, base | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})).rope_theta == 5e5
    scaled = {
        "rope_theta": 5e5,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    config = read_config(write(tmp_path, base | {"rope_parameters": scaled}))
    assert config.rope_scaling == RopeScaling("llama3", 8.0, original_max_context=1024, low_freq_factor=1.0, high_freq_factor=4.0)
    assert config.max_context == 4096


def test_rope_in_the_older_form(tmp_path: Path) -> None:
    linear = read(tmp_path, rope_scaling={"type": "linear", "factor": 4.0})
    assert (linear.rope_scaling, linear.max_context) == (RopeScaling("linear", 4.0), 16_384)
    yarn = read(tmp_path, "qwen2", rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096})
    assert yarn.rope_scaling is not None
    assert yarn.rope_scaling.attention_factor == pytest.approx(1.1386294)
    assert yarn.max_context == 16_384
    for kind in ("dynamic", "longrope", "mrope"):
        with pytest.raises(UnsupportedModelError, match=kind):
            read(tmp_path, rope_scaling={"type": kind, "factor": 2.0})
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor"):
        read(tmp_path, partial_rotary_factor=0.5)


def test_end_tokens_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert read(tmp_path, eos_token_id=[9, 2]).eos_token_ids == (2, 7, 9)
    assert read(tmp_path, eos_token_id=None).eos_token_ids == (2, 7)
    with pytest.raises(BrokenCheckpointError, match="eos_token_id"):
        read(tmp_path, eos_token_id="</s>")


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "MixtralForCausalLM", "Qwen2VLForConditionalGeneration"])
def test_other_architectures_are_refused_without_weights(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=f"architecture {name} is not supported .* RadixServe serves"):
        read(tmp_path, architectures=[name])


def test_without_architectures_the_model_type_decides(tmp_path: Path) -> None:
    assert read(tmp_path, "qwen3", architectures=None).architecture == "Qwen3ForCausalLM"
    with pytest.raises(UnsupportedArchitectureError, match="gpt_neox"):
        read(tmp_path, architectures=[], model_type="gpt_neox")


def test_features_without_a_kernel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="gptq"):
        read(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedModelError, match="gelu"):
        read(tmp_path, hidden_act="gelu")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "64"),
        ("hidden_size", None),
        ("num_hidden_layers", 0),
        ("rms_norm_eps", -1),
        ("vocab_size", 1.5),
        ("rope_scaling", 3),
    ],
)
def test_nonsense_names_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(BrokenCheckpointError, match=rf"config\.json.*{key}"):
        read(tmp_path, "llama", **{key: value})


def test_heads_that_do_not_group(tmp_path: Path) -> None:
    with pytest.raises(BrokenCheckpointError, match="query heads"):
        read(tmp_path, num_key_value_heads=3)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(BrokenCheckpointError, match="there is no model at"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(BrokenCheckpointError, match=r"config\.json is missing"):
        read_config(tmp_path)
    for text in ("{", "[]", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BrokenCheckpointError, match=r"config\.json"):
            read_config(tmp_path)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_gguf_says_the_same_as_the_folder(tmp_path: Path, arch: str) -> None:
    from dataclasses import replace

    file = read_config(write_tiny_gguf(tmp_path / "tiny.gguf", arch))  # type: ignore[arg-type]
    folder = read(tmp_path, arch)
    assert file.rms_eps == pytest.approx(folder.rms_eps)
    assert replace(file, rms_eps=folder.rms_eps) == folder


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        ({"scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"scale_linear": 1.0}, None),
        ({"scaling.factor": 2.0}, RopeScaling("linear", 2.0)),
        ({"scaling.factor": 2.0, "scale_linear": 4.0}, RopeScaling("linear", 2.0)),
        ({"scaling.type": "linear", "scaling.factor": 2.0}, RopeScaling("linear", 2.0)),
        ({"scaling.type": "linear", "scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"scaling.type": "none", "scale_linear": 4.0}, None),
        ({}, None),
    ],
)
def test_gguf_rope_scaling_by_every_key(tmp_path: Path, settings: dict[str, float | str], scaling: RopeScaling | None) -> None:
    """Files from before `rope.scaling` have `rope.scale_linear`; a factor without a type is linear, as llama.cpp reads it."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", settings={f"llama.rope.{key}": value for key, value in settings.items()})
    config = read_config(path)
    assert (config.rope_scaling, config.max_context) == (scaling, 4096)


@pytest.mark.parametrize("key", ["scale_linear", "scaling.factor"])
def test_gguf_rope_scaling_that_is_none(tmp_path: Path, key: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", settings={f"llama.rope.{key}": 0.0})
    with pytest.raises(BrokenCheckpointError, match=key):
        read_config(path)
