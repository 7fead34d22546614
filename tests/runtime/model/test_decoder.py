"""The decoder against transformers' own forward, in float32, on tiny random checkpoints of every family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from radixserve_kernels.reference import ReferenceBackend
from radixserve_kernels.registry import BackendUnavailableError, load_backend
from radixserve_runtime.model.config import BrokenCheckpointError, UnsupportedArchitectureError, read_config
from radixserve_runtime.model.decoder import Decoder, attention_spec, load_model
from tests.support.run_decoder import Runner
from tests.support.tiny_model import write_tiny_checkpoint, write_tiny_gguf

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = [1, *range(20, 420, 5), 2]

VARIANTS: list[tuple[str, dict[str, object]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": 32, "num_key_value_heads": 4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_theta": 5e5,
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    ("mistral", {}),
    ("mistral", {"sliding_window": 7}),
    ("qwen2", {}),
    (
        "qwen2",
        {"tie_word_embeddings": True, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    ),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}),
    ("qwen3", {}),
    ("qwen3", {"num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True}),
]


def load(path: Path, dtype: str = "float32") -> Decoder:
    return load_model(path, dtype, ReferenceBackend(attention_spec(read_config(path)), "cpu"))


def theirs(folder: Path) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@pytest.mark.parametrize(("arch", "overrides"), VARIANTS)
def test_logits_are_those_of_transformers(tmp_path: Path, arch: str, overrides: dict[str, object]) -> None:
    folder = write_tiny_checkpoint(tmp_path, arch, **overrides)  # type: ignore[arg-type]
    with torch.inference_mode():
        expected = theirs(folder)(torch.tensor([TOKENS])).logits[0]
    logits = Runner(load(folder)).step([(0, TOKENS)], all_logits=True)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_every_backend_gives_the_same_logits(tmp_path: Path, arch: str, backend: str) -> None:
    """A prompt beside a chunk that goes on: also shows that a backend takes the strided views that the decoder hands it."""
    folder = write_tiny_checkpoint(tmp_path, arch, sliding_window=11 if arch == "mistral" else None)  # type: ignore[arg-type]
    try:
        loaded = load_backend(backend, attention_spec(read_config(folder)))
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    steps = [[(0, TOKENS[:40])], [(0, TOKENS[40:]), (1, TOKENS)], [(1, [9]), (0, [8])]]
    expected, ours = Runner(load(folder)), Runner(load_model(folder, "float32", loaded))
    for step in steps:
        torch.testing.assert_close(ours.step(step, all_logits=True), expected.step(step, all_logits=True), rtol=0, atol=1e-4)


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("page_size_tokens", [1, 16])
def test_chunks_and_company_change_nothing(tmp_path: Path, arch: str, page_size_tokens: int) -> None:
    folder = write_tiny_checkpoint(tmp_path, arch, sliding_window=11 if arch == "mistral" else None)  # type: ignore[arg-type]
    num_pages = 512 // page_size_tokens
    whole = Runner(load(folder), num_pages, page_size_tokens).step([(0, TOKENS)], all_logits=True)
    runner = Runner(load(folder), num_pages, page_size_tokens)
    rows: list[torch.Tensor] = []
    for i in range(0, len(TOKENS), 7):
        company = [(1, TOKENS[i : i + 3][::-1] or [5]), (2, [i + 3])]
        logits = runner.step([company[0], (0, TOKENS[i : i + 7]), company[1]], all_logits=True)
        start = len(company[0][1])
        rows.append(logits[start : start + len(TOKENS[i : i + 7])])
    torch.testing.assert_close(torch.cat(rows), whole, rtol=0, atol=1e-4)


def test_only_wanted_rows_get_logits(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    decoder = load(folder)
    every = Runner(decoder).step([(0, TOKENS)], all_logits=True)
    runner = Runner(load(folder))
    batch, _ = runner._batch([(0, TOKENS)])
    rows = torch.tensor([40, 3, 3, 0])
    some = runner.decoder.forward(torch.tensor(TOKENS), batch, rows)
    torch.testing.assert_close(some, every[rows], rtol=0, atol=1e-5)


def test_no_rows_still_write_kv(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    expected = Runner(load(folder)).step([(0, TOKENS)])
    runner = Runner(load(folder))
    batch, _ = runner._batch([(0, TOKENS[:-1])])
    none = runner.decoder.forward(torch.tensor(TOKENS[:-1]), batch, torch.empty(0, dtype=torch.int64))
    assert none.shape == (0, 512)
    assert none.dtype == torch.float32
    torch.testing.assert_close(runner.step([(0, TOKENS[-1:])]), expected, rtol=0, atol=1e-4)


def test_greedy_output_varies(tmp_path: Path) -> None:
    """Else nothing that is tested on the tiny model would mean much."""
    runner = Runner(load(write_tiny_checkpoint(tmp_path)))
    outputs = [runner.greedy([1, first, 50], 32) for first in range(30, 36)]
    assert all(len(set(output)) >= 8 for output in outputs)
    assert len({tuple(output) for output in outputs}) == len(outputs)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("quantization", ["F32", "F16", "Q8_0"])
def test_gguf_is_the_same_model(tmp_path: Path, arch: str, quantization: str) -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3}
    folder = write_tiny_checkpoint(tmp_path / "folder", arch, **heads)  # type: ignore[arg-type]
    file = write_tiny_gguf(tmp_path / "m.gguf", arch, quantization, **heads)  # type: ignore[arg-type]
    kind = GGMLQuantizationType[quantization]
    weights = load_file(folder / "model.safetensors")
    rounded = {name: dequantize(quantize(value, kind), kind) if value.ndim == 2 else value for name, value in weights.items()}
    save_file(rounded, folder / "model.safetensors")
    expected = Runner(load(folder)).step([(0, TOKENS)], all_logits=True)
    logits = Runner(load(file)).step([(0, TOKENS)], all_logits=True)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_gguf_biases_of_llama_are_permuted_too(tmp_path: Path) -> None:
    settings: dict[str, object] = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    expected = Runner(load(write_tiny_checkpoint(tmp_path / "folder", **settings))).step([(0, TOKENS)])  # type: ignore[arg-type]
    logits = Runner(load(write_tiny_gguf(tmp_path / "m.gguf", **settings))).step([(0, TOKENS)])  # type: ignore[arg-type]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    exact = Runner(load(folder)).step([(0, TOKENS)], all_logits=True)
    ours = Runner(load(folder, "bfloat16")).step([(0, TOKENS)], all_logits=True)
    with torch.inference_mode():
        reference = theirs(folder).bfloat16()(torch.tensor([TOKENS])).logits[0].float()
    assert ours.dtype == torch.float32
    assert (ours - exact).abs().mean() <= 1.5 * (reference - exact).abs().mean()


def test_progress_runs_to_the_end(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    heard: list[tuple[str, float]] = []
    load_model(
        folder,
        "float32",
        ReferenceBackend(attention_spec(read_config(folder)), "cpu"),
        lambda what, done: heard.append((what, done)),
    )
    assert heard == [("reading weights", 0.5), ("reading weights", 1.0), ("packing weights", 0.5), ("packing weights", 1.0)]


def test_errors_come_before_weights(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, architectures=["FalconForCausalLM"])
    backend = ReferenceBackend(attention_spec(read_config(write_tiny_checkpoint(tmp_path / "sound"))), "cpu")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedArchitectureError):
        load_model(folder, "float32", backend)
    with pytest.raises(ValueError, match="float8"):
        load_model(tmp_path / "sound", "float8", backend)
    with pytest.raises(BrokenCheckpointError, match="there is no model"):
        load_model(tmp_path / "nowhere", "float32", backend)
