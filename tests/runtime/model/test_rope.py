"""Rotary frequencies against transformers' own, for every kind of scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.rope import cos_sin_table, inverse_frequencies
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

SCALINGS: dict[str, dict[str, object]] = {
    "none": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-all": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "yarn-attention": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048, "attention_factor": 1.25},
    "yarn-no-factor": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_table_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    scaling = dict(SCALINGS[name]) or None
    folder = write_tiny_checkpoint(tmp_path, head_dim=64, rope_theta=50_000.0, rope_scaling=scaling)
    config = replace(read_config(folder), max_context=4096)
    rope = LlamaRotaryEmbedding(LlamaConfig.from_pretrained(folder))
    assert torch.equal(inverse_frequencies(config), rope.inv_freq) or torch.allclose(
        inverse_frequencies(config), rope.inv_freq, rtol=2e-7, atol=0
    )
    cos, sin = rope(torch.zeros(1), torch.arange(4096)[None])
    table = cos_sin_table(config)
    assert table.shape == (4096, 64)
    assert table.dtype == torch.float32
    torch.testing.assert_close(table[:, :32], cos[0, :, :32], rtol=0, atol=1e-3)
    torch.testing.assert_close(table[:, 32:], sin[0, :, :32], rtol=0, atol=1e-3)
    torch.testing.assert_close(table[:64], torch.cat((cos[0, :64, :32], sin[0, :64, :32]), dim=1), rtol=0, atol=2e-5)


def test_factors_of_a_gguf_divide_frequencies(tmp_path: Path) -> None:
    """llama.cpp's converter turns llama3's scaling into such factors."""
    folder = write_tiny_checkpoint(tmp_path, rope_scaling=dict(SCALINGS["llama3"]))
    scaled = read_config(folder)
    plain = replace(scaled, rope_scaling=None)
    factors = inverse_frequencies(plain) / inverse_frequencies(scaled)
    torch.testing.assert_close(cos_sin_table(plain, factors), cos_sin_table(scaled), rtol=0, atol=1e-3)
