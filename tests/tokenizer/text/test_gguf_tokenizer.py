from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import gguf
import pytest

from radixserve_tokenizer.text import TokenizerLoadError, load_tokenizer
from radixserve_tokenizer.text.gguf_metadata import GGUFError, read_metadata
from tests.tokenizer.text.small_tokenizers import ADDED_TEXT, CONTROL, MERGES, engine

if TYPE_CHECKING:
    from pathlib import Path


def write_byte_level(path: Path, *, pre: str | None = "smollm", **keys: Any) -> Path:
    vocabulary = engine().get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(keys.pop("model", "gpt2"))
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 4 if token in ADDED_TEXT else 1 for token in tokens])
    writer.add_token_merges([f"{left} {right}" for left, right in sorted(MERGES, key=lambda m: len(m[0] + m[1]))])
    for key, value in ({"add_bos_token_id": 0, "add_eos_token_id": 1} | keys).items():
        getattr(writer, key)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pieces(path: Path, text: str) -> list[str]:
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    return [tokenizer.token_text(id) for id in ids]


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2", "default", None])
def test_splits(tmp_path: Path, pre: str | None) -> None:
    path = write_byte_level(tmp_path / "m.gguf", pre=pre)
    assert pieces(path, "hello hello") == ["hello", " hello"]
    # "\n\n" is a token and so is "\nhello"; only a split that ends lines keeps them apart.
    assert pieces(path, "\nhello") == ["\n", "hello"]
    assert pieces(path, "<think>a")[0] == "<think>"
    assert "<|im_end|>" not in pieces(path, "<|im_end|>")


def test_end_of_turn_tokens_are_known_by_name_too(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_byte_level(tmp_path / "m.gguf", add_eot_token_id=6))
    assert tokenizer.eos_token_ids == (1, 6, 3)  # declared: </s>, <|eot|>; by name: <|im_end|>
    assert tokenizer.vocabulary[3] == b""
    assert tokenizer.template_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(("pre", "adds"), [("smollm", False), ("llama-bpe", True)])
def test_who_starts_with_the_first_token(tmp_path: Path, pre: str, adds: bool) -> None:
    assert load_tokenizer(write_byte_level(tmp_path / "m.gguf", pre=pre)).add_bos is adds


@pytest.mark.parametrize(("keys", "message"), [({"pre": "tekken"}, "tekken"), ({"model": "t5"}, "t5")])
def test_what_is_not_supported_is_named(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    with pytest.raises(TokenizerLoadError, match=message):
        load_tokenizer(write_byte_level(tmp_path / "m.gguf", **keys))


def test_metadata_equals_what_the_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    values: dict[str, tuple[Any, gguf.GGUFValueType]] = {
        "a.u8": (200, gguf.GGUFValueType.UINT8),
        "a.i16": (-300, gguf.GGUFValueType.INT16),
        "a.u64": (1 << 63, gguf.GGUFValueType.UINT64),
        "a.f64": (0.1, gguf.GGUFValueType.FLOAT64),
        "a.bool": (True, gguf.GGUFValueType.BOOL),
        "a.text": ("ä\n", gguf.GGUFValueType.STRING),
    }
    for key, (value, kind) in values.items():
        writer.add_key_value(key, value, kind)
    writer.add_array("a.texts", ["", "x", "日本"])
    writer.add_array("a.floats", [0.5, -1.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_metadata(path)
    assert {key: metadata[key] for key in values} == {key: value for key, (value, _) in values.items()}
    assert (metadata["a.texts"], metadata["a.floats"]) == (["", "x", "日本"], [0.5, -1.0])
    reader = gguf.GGUFReader(path)
    assert {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")} == metadata


def test_every_cut_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    whole = write_byte_level(tmp_path / "m.gguf").read_bytes()
    metadata_end = len(whole.rstrip(b"\0")) - 1
    cut = tmp_path / "cut.gguf"
    for size in [3, 4, 8, 20, 24, 40, 100, 1000, metadata_end // 2, metadata_end - 8]:
        cut.write_bytes(whole[:size])
        with pytest.raises(GGUFError):
            read_metadata(cut)
        with pytest.raises(TokenizerLoadError):
            load_tokenizer(cut)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack("<IQQ", 9, 0, 0),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 60),
    ],
)
def test_nonsense_is_a_clear_error(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + body)
    with pytest.raises(GGUFError):
        read_metadata(tmp_path / "m.gguf")


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerLoadError, match=r"none\.gguf"):
        load_tokenizer(tmp_path / "none.gguf")
