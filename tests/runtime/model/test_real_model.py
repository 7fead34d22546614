"""The bundled model against transformers on the same weights: a small version of benchmarks/fidelity.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks.fidelity import TEXTS, compare, encode, misses
from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.gguf import load_gguf
from radixserve_runtime.model.gguf_file import GgufFile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.model


def test_config(smollm2_path: Path) -> None:
    config = read_config(smollm2_path)
    assert (config.hidden_size, config.num_layers, config.num_q_heads, config.num_kv_heads, config.head_dim) == (
        576,
        30,
        9,
        3,
        64,
    )
    assert (config.vocab_size, config.rope_theta, config.max_context, config.tied_embeddings) == (49152, 1e5, 8192, True)
    assert config.eos_token_ids == (2,)


def test_weights_are_those_of_transformers(smollm2_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    theirs = AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent,
        gguf_file=smollm2_path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).state_dict()
    ours = load_gguf(GgufFile(smollm2_path), read_config(smollm2_path), torch.float32)
    assert torch.equal(ours.embedding, theirs["model.embed_tokens.weight"])
    assert torch.equal(ours.final_norm, theirs["model.norm.weight"])
    for i in (0, 13, 29):
        layer, prefix = ours.layers[i], f"model.layers.{i}."
        assert torch.equal(layer.qkv, torch.cat([theirs[f"{prefix}self_attn.{x}_proj.weight"] for x in "qkv"]))
        assert torch.equal(layer.gate_up, torch.cat([theirs[f"{prefix}mlp.{x}_proj.weight"] for x in ("gate", "up")]))
        assert torch.equal(layer.down, theirs[f"{prefix}mlp.down_proj.weight"])
        assert torch.equal(layer.mlp_norm, theirs[f"{prefix}post_attention_layernorm.weight"])


@pytest.mark.slow
def test_fidelity(smollm2_path: Path) -> None:
    prompts = encode(smollm2_path, TEXTS[1:4])
    assert misses(compare(smollm2_path, prompts, num_tokens=8, backend="auto"), num_tokens=8) == []
