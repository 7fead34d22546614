"""`--quantization`: what stays in its own form, what is changed, and that the log says so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from radixserve_kernels.reference import ReferenceBackend
from radixserve_kernels.registry import BackendUnavailableError, load_backend
from radixserve_runtime.model.config import UnsupportedModelError, read_config
from radixserve_runtime.model.decoder import Decoder, attention_spec, load_model
from radixserve_runtime.model.gguf import load_gguf
from radixserve_runtime.model.gguf_blocks import split_blocks
from radixserve_runtime.model.gguf_file import GgufFile
from radixserve_runtime.model.quantize import Quantizer
from radixserve_runtime.model.safetensors import load_safetensors
from tests.support.run_decoder import Runner
from tests.support.tiny_model import write_tiny_checkpoint, write_tiny_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve_kernels.quantized import QuantizedWeight
    from radixserve_runtime.model.weights import Matrix, Weights

TOKENS = [(29 * i) % 500 for i in range(120)]


def gguf(path: Path, kind: Any, quantization: Literal["int8", "int4"]) -> tuple[Weights, Weights]:
    """Quantised, and unpacked."""
    file = GgufFile(write_tiny_gguf(path / f"{kind}.gguf", quantization=kind))
    config = read_config(file.path)
    return load_gguf(file, config, torch.float32, quantizer=Quantizer(quantization)), load_gguf(file, config, torch.float32)


def parts(matrix: Matrix | None) -> tuple[QuantizedWeight, ...]:
    assert isinstance(matrix, tuple)
    return matrix


def unpacked(matrix: Matrix | None) -> torch.Tensor:
    return torch.cat([part.dequantize() for part in parts(matrix)])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks_are_taken_apart_without_loss(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    stored = quantize(values, GGMLQuantizationType[kind])
    weight = split_blocks(stored, kind)
    assert weight.codes.shape == (6, 96)
    assert weight.scales.shape == (6, 3)
    expected = torch.from_numpy(dequantize(stored, GGMLQuantizationType[kind]))
    torch.testing.assert_close(weight.dequantize(), expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "quantization", "kept"),
    [
        ("Q8_0", "int8", True),
        ("Q8_0", "int4", True),
        ("Q4_0", "int4", True),
        ("Q4_1", "int4", True),
        ("Q4_1", "int8", False),
        ("F16", "int8", False),
        ("F16", "int4", False),
    ],
)
def test_kinds_that_fit_are_kept(
    tmp_path: Path, kind: str, quantization: Any, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    quantised, plain = gguf(tmp_path, kind, quantization)
    layer, exact = quantised.layers[1], plain.layers[1]
    assert isinstance(exact.qkv, torch.Tensor)
    assert len(parts(layer.qkv)) == 3
    assert len(parts(layer.gate_up)) == 2
    bits = {part.num_bits for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down) for part in parts(matrix)}
    assert bits == {8 if quantization == "int8" or kind == "Q8_0" else 4}
    error = (unpacked(layer.qkv) - exact.qkv).abs().max()
    assert (float(error) < 1e-6) is kept
    assert float(error) < 0.2
    assert parts(quantised.lm_head)[0].num_bits == 8, "the head has 8 bits whatever the rest has"
    [line] = [record.getMessage() for record in caplog.records if "matrices" in record.getMessage()]
    assert f"{14 if kept else 15} matrices {kind}" in line or f"15 matrices {kind}" in line
    assert ("kept as they are" in line) is kept
    assert (f"requantised for {quantization}" in line) is (not kept or kind != "Q8_0")


def test_a_tied_head_is_quantised_and_the_embedding_stays(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, tie_word_embeddings=True)
    config = read_config(folder)
    weights = load_safetensors(folder, config, torch.float32, quantizer=Quantizer("int4"))
    head = unpacked(weights.lm_head)
    assert weights.embedding.dtype is torch.float32
    assert 0 < float((head - weights.embedding).abs().max()) < 0.05


def test_widths_that_are_no_whole_groups_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path, intermediate_size=80)
    with pytest.raises(UnsupportedModelError, match=r"down_proj.*80 inputs.*--quantization none"):
        load_safetensors(folder, read_config(folder), torch.float32, quantizer=Quantizer("int8"))


def run(decoder: Decoder) -> torch.Tensor:
    return Runner(decoder).step([(0, TOKENS)], all_logits=True)


def agreement(a: torch.Tensor, b: torch.Tensor) -> float:
    """Correlation of all logits."""
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


@pytest.mark.parametrize(("quantization", "least"), [("int8", 0.995), ("int4", 0.8)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_stay_close(tmp_path: Path, quantization: Any, least: float, dtype: str) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    spec = attention_spec(read_config(folder))
    exact = run(load_model(folder, "float32", ReferenceBackend(spec)))
    unpacked = run(load_model(folder, dtype, ReferenceBackend(spec), quantization=quantization))
    assert agreement(exact, unpacked) >= least
    assert not torch.equal(exact, unpacked)
    try:
        backend = load_backend("cpu", spec, num_threads=2)
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    decoder = load_model(folder, dtype, backend, quantization=quantization)
    assert decoder._stack is not None, "codes are the library's own, in either dtype"
    assert agreement(unpacked, run(decoder)) >= 0.99


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_an_answer_does_not_depend_on_its_batch(tmp_path: Path, quantization: Any) -> None:
    folder = write_tiny_checkpoint(tmp_path)
    try:
        backend = load_backend("cpu", attention_spec(read_config(folder)), num_threads=2)
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    runner = Runner(load_model(folder, "bfloat16", backend, quantization=quantization))
    alone = runner.step([(0, TOKENS[:50])], all_logits=True)
    runner.drop(0)
    together = runner.step([(1, TOKENS[3:90]), (0, TOKENS[:50]), (2, TOKENS[:1])], all_logits=True)
    assert torch.equal(together[87:137], alone)
    for sequence in (0, 1, 2):
        runner.drop(sequence)
    chunks = [runner.step([(0, TOKENS[a:b])], all_logits=True) for a, b in ((0, 7), (7, 30), (30, 50))]
    assert torch.equal(torch.cat(chunks), alone)
