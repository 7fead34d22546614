"""SentencePiece-style tokenizers: spaces, byte fallback, and the space that is put before a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from radixserve_tokenizer.text import ChatTemplate, TextTokenizer, load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz[]/INST\n"
WORDS = ["he", "ll", "hell", "hello", "▁hello", "▁a", "▁▁", "a▁"]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS, *WORDS]
TYPES = [2, 3, 3, *[6] * 256, *[1] * (1 + len(LETTERS) + len(WORDS))]


def write_gguf(path: Path, *, model: str = "llama", **keys: Any) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    # As SentencePiece trains them: what is joined earlier has the better score.
    writer.add_token_scores([0.0 if token not in WORDS else -1.0 - WORDS.index(token) for token in TOKENS])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for key, value in keys.items():
        getattr(writer, key)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(write_gguf(tmp_path_factory.mktemp("spm") / "model.gguf"))


def texts(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(id) for id in ids]


def test_a_space_comes_before_a_text_but_not_before_its_continuation(spm: TextTokenizer) -> None:
    assert texts(spm, spm.encode("hello a")) == [" hello", " a"]
    assert texts(spm, spm.encode("hello a", continues=True)) == ["hello", " a"]
    assert spm.decode(spm.encode("hello a")) == "hello a"
    assert (spm.bos_token_id, spm.add_bos, spm.eos_token_ids) == (1, True, (2,))


def test_the_best_score_is_joined_first(spm: TextTokenizer) -> None:
    assert texts(spm, spm.encode("a  a", continues=True)) == ["a ", " a"]  # "▁a" (-6) is joined before "▁▁" (-7) could be
    assert texts(spm, spm.encode("a  b", continues=True)) == ["a", "  ", "b"]  # "▁▁" (-7) before "a▁" (-8)


def test_what_has_no_token_falls_back_to_bytes(spm: TextTokenizer) -> None:
    ids = spm.encode("é", continues=True)
    assert [spm.vocabulary[id] for id in ids] == [b"\xc3", b"\xa9"]
    assert spm.encode_bytes(b"\xc3") == ids[:1]


@given(st.text(), st.booleans())
def test_text_survives(text: str, continues: bool) -> None:
    tokenizer = _hypothesis_tokenizer()
    ids = tokenizer.encode(text, continues=continues)
    raw = b"".join(tokenizer.vocabulary[id] for id in ids).decode()
    expected = text if continues or not text else " " + text
    assert raw == expected.replace("\u2581", " ")  # a user's U+2581 is a space to such a vocabulary
    assert not {0, 1, 2} & set(ids)


def test_gguf_without_the_prefix_space(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", add_add_space_prefix=False))
    assert texts(tokenizer, tokenizer.encode("hello")) == ["hello"]


@pytest.mark.parametrize("scheme", ["prepend", "always", "first", "never"])
def test_hugging_face_spellings_of_the_prefix_space(tmp_path: Path, scheme: str) -> None:
    tokenizer = load_tokenizer(write_hf(tmp_path, scheme))
    assert tokenizer.prefix_space == {"prepend": "always"}.get(scheme, scheme)
    assert texts(tokenizer, tokenizer.encode("hello")) == ["hello" if scheme == "never" else " hello"]
    assert texts(tokenizer, tokenizer.encode("hello", continues=True)) == ["hello"]


@pytest.mark.parametrize("scheme", ["prepend", "always", "first", "never"])
def test_template_pieces_get_the_space_where_the_library_puts_it(tmp_path: Path, scheme: str) -> None:
    source = "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{{ eos_token }}{% endfor %}"
    folder = write_hf(tmp_path, scheme)
    tokenizer = load_tokenizer(folder)
    template = ChatTemplate(source, tokenizer)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    messages = [{"role": "user", "content": "hello a"}, {"role": "user", "content": "a"}]
    rendered = "<s>[INST] hello a [/INST]</s>[INST] a [/INST]</s>"
    assert template.encode_messages(messages).ids == library.encode(rendered, add_special_tokens=False).ids
    conversation, log = template.conversation(), []
    for message in messages:
        edit = conversation.message("user", [message["content"]])
        log = log[: edit.keep] + edit.ids
    assert log == library.encode(rendered, add_special_tokens=False).ids


def write_hf(folder: Path, scheme: str) -> Path:
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello"), ("▁", "a")]
    vocabulary = {token: id for id, token in enumerate(TOKENS)}
    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme == "prepend":
        engine.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    engine.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    engine.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS[:3]])
    engine.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return folder


_cached: list[TextTokenizer] = []


def _hypothesis_tokenizer() -> TextTokenizer:
    if not _cached:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            _cached.append(load_tokenizer(write_gguf(Path(folder) / "m.gguf")))
    return _cached[0]
