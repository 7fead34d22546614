"""What the loaders refuse, and how plainly they say it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from radixserve_runtime.model.config import BrokenCheckpointError, UnsupportedModelError, read_config
from radixserve_runtime.model.gguf import load_gguf
from radixserve_runtime.model.gguf_file import GgufFile
from radixserve_runtime.model.safetensors import load_safetensors
from tests.support.tiny_model import tiny_weights, write_tiny_checkpoint, write_tiny_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve_runtime.model.weights import Weights


def load(folder: Path) -> Weights:
    return load_safetensors(folder, read_config(folder), torch.float32)


def change(folder: Path, **tensors: np.ndarray | None) -> None:
    """Replace, add or (None) remove tensors; `__` stands for a dot."""
    weights = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        name = name.replace("__", ".")
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    save_file(weights, folder / "model.safetensors")


def test_fused_tensors(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, "qwen2")
    raw = tiny_weights(json.loads((folder / "config.json").read_text()))
    layer = load(folder).layers[1]
    attn = "model.layers.1.self_attn."
    assert np.array_equal(layer.qkv.numpy(), np.concatenate([raw[f"{attn}{x}_proj.weight"] for x in "qkv"]))
    assert layer.qkv_bias is not None
    assert np.array_equal(layer.qkv_bias.numpy(), np.concatenate([raw[f"{attn}{x}_proj.bias"] for x in "qkv"]))
    mlp = "model.layers.1.mlp."
    assert np.array_equal(layer.gate_up.numpy(), np.concatenate([raw[f"{mlp}{x}_proj.weight"] for x in ("gate", "up")]))
    assert layer.o_bias is layer.gate_up_bias is layer.down_bias is layer.q_norm is None


def test_missing_unexpected_and_misshapen_are_all_listed(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    change(
        folder,
        model__layers__1__mlp__up_proj__weight=None,
        model__layers__0__self_attn__q_norm__weight=np.ones(16, np.float32),
        model__norm__weight=np.ones(63, np.float32),
    )
    with pytest.raises(BrokenCheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert "1 tensors are missing: model.layers.1.mlp.up_proj.weight" in message
    assert "don't belong to LlamaForCausalLM: model.layers.0.self_attn.q_norm.weight" in message
    assert "model.norm.weight is (63,) and not (64,)" in message


def test_harmless_extras_are_ignored(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    change(
        folder,
        model__layers__0__self_attn__rotary_emb__inv_freq=np.ones(8, np.float32),
        lm_head__weight=np.zeros((512, 64), np.float32),
    )
    assert load(folder).lm_head is None


def test_half_precision_files(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    exact = load(folder)
    save_file(
        {name: value.astype(np.float16) for name, value in load_file(folder / "model.safetensors").items()},
        folder / "model.safetensors",
    )
    halved = load(folder)
    assert halved.embedding.dtype == torch.float32
    assert torch.equal(halved.embedding, exact.embedding.half().float())


def test_integers_are_not_weights(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    change(folder, model__norm__weight=np.ones(64, np.int8))
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight.*I8"):
        load(folder)


def shard(folder: Path) -> dict[str, str]:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(weights)}
    for file in set(weight_map.values()):
        save_file({name: value for name, value in weights.items() if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def test_sharded_is_the_same(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    single = load(folder)
    shard(folder)
    sharded = load(folder)
    assert torch.equal(sharded.embedding, single.embedding)
    assert all(
        torch.equal(a.qkv, b.qkv) and torch.equal(a.down, b.down) for a, b in zip(sharded.layers, single.layers, strict=True)
    )


def test_broken_folders(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(BrokenCheckpointError, match=r"model\.safetensors is cut off or damaged"):
        load(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BrokenCheckpointError, match="never read: convert them to safetensors"):
        load(folder)


def test_broken_index(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    index = folder / "model.safetensors.index.json"
    weight_map = shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BrokenCheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        load(folder)
    index.write_text(json.dumps({"weight_map": weight_map | {"x": "../../etc/passwd"}}))
    with pytest.raises(BrokenCheckpointError, match="outside of the model's folder"):
        load(folder)
    index.write_text("{}")
    with pytest.raises(BrokenCheckpointError, match="weight_map"):
        load(folder)


def test_gguf_errors_use_its_own_names(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    file = GgufFile(path)
    del file.tensors["blk.1.ffn_up.weight"]
    file.tensors["blk.0.attn_rot.weight"] = file.tensors["blk.0.attn_q.weight"]
    with pytest.raises(BrokenCheckpointError) as caught:
        load_gguf(file, read_config(path), torch.float32)
    assert "missing: blk.1.ffn_up.weight" in str(caught.value)
    assert "don't belong to LlamaForCausalLM: blk.0.attn_rot.weight" in str(caught.value)


@pytest.mark.parametrize("chunk_elements", [1, 64, 1000, 1 << 22])
def test_gguf_chunks_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_elements: int) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", "llama", "Q8_0")
    whole = load_gguf(GgufFile(path), read_config(path), torch.float32)
    monkeypatch.setattr("radixserve_runtime.model.gguf._CHUNK_ELEMENTS", chunk_elements)
    parts = load_gguf(GgufFile(path), read_config(path), torch.float32)
    assert torch.equal(whole.embedding, parts.embedding)
    assert torch.equal(whole.layers[0].qkv, parts.layers[0].qkv)
