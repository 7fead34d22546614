"""The micro-benchmarks measure what they say: shapes, limits, and that nothing is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import radixserve as rs
from benchmarks.bars import scale
from benchmarks.micro import kernels, tokenizer
from radixserve_kernels.registry import load_backend
from radixserve_tokenizer.text.load import load_tokenizer
from radixserve_tokenizer.text.template import load_template
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


def test_a_ragged_batch_has_a_slot_for_each_new_token() -> None:
    batch, pages = kernels.ragged([1, 20], [33, 20])
    assert pages == 3 + 2
    assert batch.qo_indptr.tolist() == [0, 1, 21]
    assert batch.positions.tolist() == [32, *range(20)]
    assert batch.slots.tolist() == [2 * 16, *(3 * 16 + place for place in range(20))]
    assert batch.page_indptr.tolist() == [0, 3, 5]


def test_what_a_kernel_needs_at_least() -> None:
    with torch.inference_mode():
        decode = kernels.attention("d", lambda: load_backend("reference", kernels.SPEC), [1, 1], [10, 20])
        prefill = kernels.attention("p", lambda: load_backend("reference", kernels.SPEC), [4], [6])
        decode.run()
        prefill.run()
    assert decode.num_bytes == 30 * 2 * 3 * 64 * 2
    # Queries at positions 2 to 5 see 3 + 4 + 5 + 6 keys, with 9 heads, two products of 64 dimensions.
    assert prefill.num_operations == 18 * 9 * 64 * 4
    assert decode.num_operations == prefill.num_bytes == 0


def test_text_comes_back(model: Path) -> None:
    text = load_tokenizer(model)
    template = load_template(text)
    assert template is not None
    bench = tokenizer.Bench(text, template, num_words=50)
    assert bench.encode() == bench.detokenize() == len(bench.ids)
    assert bench.converse() == tokenizer.TURNS
    seconds, count = tokenizer.cpu_s(lambda: 7, 3)
    assert seconds >= 0
    assert count == 7


@pytest.mark.slow
def test_the_scale_bar_has_a_figure_for_each_load(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny() -> rs.Engine:
        return original(str(model), dtype="float32", threads=1, kv_tokens=16_384, log_level="error")

    original = rs.Engine
    monkeypatch.setattr(scale.rs, "Engine", tiny)
    monkeypatch.setattr(scale, "IDLE_S", 0.2)
    (name, figure, bar, _), (idle_name, idle, _, _) = scale.main(passes=1)
    assert name.startswith("scale")
    assert bar == "at 64 >= at 16"
    assert all(f"{count}: " in figure for count in scale.AT_A_TIME)
    assert "(0 errors)" in figure
    assert "idle" in idle_name
    assert "of a core" in idle
