"""All layers in one call: bit for bit what the operators give one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from radixserve_kernels.cpu.backend import CpuBackend
from radixserve_kernels.cpu.stack import LayerStack
from radixserve_kernels.registry import BackendUnavailableError, load_backend
from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.decoder import Decoder, attention_spec, load_model
from tests.support.run_decoder import Runner
from tests.support.tiny_model import Arch, write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

SHAPES: list[tuple[Arch, dict[str, object]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 3}),
    ("mistral", {"sliding_window": 20}),
    ("qwen2", {"tie_word_embeddings": True, "hidden_size": 96}),
    ("qwen3", {"num_key_value_heads": 1}),
]


def decoder(folder: Path, fused: bool, dtype: str = "bfloat16") -> Decoder:
    try:
        backend = load_backend("cpu", attention_spec(read_config(folder)), num_threads=2)
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    if not fused:
        assert isinstance(backend, CpuBackend)
        backend.fuse_layers = lambda *_: None  # type: ignore[method-assign]
    made = load_model(folder, dtype, backend)
    assert isinstance(made._stack, LayerStack) is fused
    return made


def steps(decoder: Decoder) -> list[torch.Tensor]:
    """Prompts, chunks, decodes, rows that nobody asks for, and a step without any row."""
    runner = Runner(decoder)
    tokens = [(37 * i) % 500 for i in range(200)]
    results = [
        runner.step([(0, tokens[:90]), (1, tokens[3:40]), (2, tokens[:1])], all_logits=True),
        runner.step([(0, tokens[90:92]), (1, [7]), (2, tokens[1:70])]),
        runner.step([(0, [3]), (1, [4]), (2, [5])]),
    ]
    batch, _ = runner._batch([(0, tokens[100:110])])
    results.append(decoder.forward(torch.tensor(tokens[100:110]), batch, torch.empty(0, dtype=torch.int64)))
    results.append(runner.step([(0, [9])]))
    return results


@pytest.mark.parametrize(("arch", "overrides"), SHAPES)
def test_one_call_has_the_same_bits(tmp_path: Path, arch: Arch, overrides: dict[str, object]) -> None:
    folder = write_tiny_checkpoint(tmp_path, arch, **overrides)
    together, apart = steps(decoder(folder, True)), steps(decoder(folder, False))
    assert [result.shape[0] for result in together] == [128, 3, 3, 0, 1]
    for one, other in zip(together, apart, strict=True):
        assert one.dtype is torch.float32
        assert torch.equal(one, other)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    made = decoder(write_tiny_checkpoint(tmp_path), True)
    stack = made._stack
    assert stack is not None
    embedded, positions, rows = (
        torch.zeros(3, 64).bfloat16(),
        torch.zeros(3, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int64),
    )
    with pytest.raises(RuntimeError, match="prepare first"):
        stack(embedded, positions, rows)
    runner = Runner(made)
    batch, _ = runner._batch([(0, [1, 2, 3])])
    made.backend.prepare(batch)
    with pytest.raises(ValueError, match="prepared batch"):
        stack(embedded[:2], positions[:2], rows)
    with pytest.raises(ValueError, match=r"must be torch\.bfloat16"):
        stack(embedded.float(), positions, rows)
    with pytest.raises(IndexError, match="row of logits"):
        stack(embedded, positions, rows + 3)
    with pytest.raises(IndexError, match="rotary table"):
        stack(embedded, positions + 100_000, rows)


def test_float32_runs_layer_by_layer(tmp_path: Path) -> None:
    assert decoder(write_tiny_checkpoint(tmp_path), False, "float32")._stack is None
