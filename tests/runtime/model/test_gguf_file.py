"""The header reader against the gguf library's own, and against damaged files."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.model.config import ModelError, UnsupportedArchitectureError, UnsupportedModelError, read_config
from radixserve_runtime.model.errors import BrokenCheckpointError
from radixserve_runtime.model.gguf_file import GgufFile
from tests.support.tiny_model import write_tiny_gguf

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", "Q8_0")


def test_reads_what_the_library_reads(tiny: Path) -> None:
    ours, theirs = GgufFile(tiny), GGUFReader(tiny)
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.start, mine.num_bytes, mine.kind) == (tensor.data_offset, tensor.n_bytes, tensor.tensor_type)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(ours.raw(mine).reshape(-1), np.asarray(tensor.data).view(np.uint8).reshape(-1))
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF.") and name in ours.metadata:
            assert ours.metadata[name] == field.contents()
    left_out = {name for name in theirs.fields if not name.startswith("GGUF.")} - ours.metadata.keys()
    assert left_out == {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}


def test_every_scalar_type(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "types.gguf", "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_int32("a.i32", -5)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_string("a.text", "Zürich")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = GgufFile(tmp_path / "types.gguf").metadata
    assert {key: value for key, value in read.items() if key.startswith("a.")} == {
        "a.u8": 200,
        "a.i8": -100,
        "a.u16": 60_000,
        "a.i16": -30_000,
        "a.i32": -5,
        "a.u64": 2**63,
        "a.i64": -(2**62),
        "a.f32": 0.5,
        "a.f64": 0.1,
        "a.bool": True,
        "a.numbers": [1, 2, 3],
        "a.text": "Zürich",
    }


def test_a_file_cut_anywhere_gives_a_clear_error(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(400), *range(400, len(data) - 1, 5003), len(data) - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(BrokenCheckpointError, match=r"cut\.gguf"):
            GgufFile(cut)


@settings(max_examples=300, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_a_damaged_header_never_raises_anything_unnamed(tiny: Path, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(tiny.read_bytes())
    for at, new in changes:
        data[at : at + len(new)] = new
    damaged = tiny.with_name("damaged.gguf")
    damaged.write_bytes(data)
    with contextlib.suppress(ModelError):  # the change may have hit nothing that matters
        read_config(damaged)


def settings_file(path: Path, arch: str, **values: object) -> Path:
    writer = GGUFWriter(path, arch)
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key.replace("__", "."), value)
        else:
            writer.add_uint32(key.replace("__", "."), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitectureError, match="architecture gemma3 is not supported"):
        read_config(settings_file(tmp_path / "a.gguf", "gemma3"))
    with pytest.raises(UnsupportedArchitectureError, match="experts"):
        read_config(settings_file(tmp_path / "b.gguf", "llama", llama__expert_count=8))
    with pytest.raises(UnsupportedModelError, match="merge"):
        read_config(settings_file(tmp_path / "c.gguf", "llama", split__count=2))
    with pytest.raises(BrokenCheckpointError, match=r"llama\.embedding_length"):
        read_config(settings_file(tmp_path / "d.gguf", "llama"))


def test_another_file_is_not_a_gguf(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(BrokenCheckpointError, match="not a GGUF file"):
        read_config(other)
