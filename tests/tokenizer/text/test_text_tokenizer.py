from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from radixserve_tokenizer.text import InvalidTextError, TokenizerLoadError, load_tokenizer
from radixserve_tokenizer.text.tokenizer import Control, TextTokenizer
from tests.tokenizer.text.small_tokenizers import CHATML, CONTROL, small_tokenizer, write_folder

if TYPE_CHECKING:
    from pathlib import Path

SMALL = small_tokenizer()


@given(st.text())
def test_bytes_of_encoded_text_are_its_utf8_and_none_is_a_control_token(text: str) -> None:
    ids = SMALL.encode(text)
    assert b"".join(SMALL.vocabulary[id] for id in ids) == text.encode()
    assert SMALL.decode(ids) == text
    assert not set(ids) & set(SMALL.special.values())


@given(st.lists(st.sampled_from([*CONTROL, "a", "\n", "<|", "im_end|>"])).map("".join))
def test_control_tokens_written_by_a_user_stay_text(text: str) -> None:
    ids = SMALL.encode(text)
    assert not set(ids) & set(SMALL.special.values())
    assert SMALL.decode(ids) == text


def test_a_control_token_that_merges_could_reach_is_not_reached() -> None:
    # The vocabulary itself joins "<" "s" ">" to the control token.
    vocabulary = {"<s>": 0, "<": 1, "s": 2, ">": 3, "<s": 4, "a": 5}
    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=[("<", "s"), ("<s", ">")]))
    engine.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer = TextTokenizer(engine, [b"", b"<", b"s", b">", b"<s", b"a"], {"<s>": Control(0)}, eos_token_ids=[0])
    ids = tokenizer.encode("a<s>a")
    assert 0 not in ids
    assert tokenizer.decode(ids) == "a<s>a"


@given(st.binary(max_size=20))
def test_bytes_that_are_no_text_can_be_encoded(raw: bytes) -> None:
    assert b"".join(SMALL.vocabulary[id] for id in SMALL.encode_bytes(raw)) == raw


@pytest.mark.parametrize("text", ["\ud83d", "x \ude00 y"])
def test_half_a_surrogate_pair_is_a_clear_error(text: str) -> None:
    with pytest.raises(InvalidTextError, match="half of a surrogate pair"):
        SMALL.encode(text)


def test_nul_and_whole_pairs_are_text() -> None:
    text = json.loads('"\\u0000 \\ud83d\\ude00"')
    assert SMALL.decode(SMALL.encode(text)) == "\x00 😀"


def test_token_text() -> None:
    assert SMALL.token_text(SMALL.special["<|im_end|>"]) == "<|im_end|>"
    assert SMALL.token_text(SMALL.encode("é")[0]) == "\ufffd"
    assert SMALL.token_text(10**6) == ""
    assert SMALL.decode([SMALL.special["<s>"], *SMALL.encode("a")]) == "a"
    assert SMALL.decode([SMALL.special["<s>"], *SMALL.encode("a")], skip_special=False) == "<s>a"


def test_a_folder_gives_the_same_tokenizer(tmp_path: Path) -> None:
    loaded = load_tokenizer(write_folder(tmp_path))
    assert loaded.vocabulary == SMALL.vocabulary
    assert loaded.fingerprint == SMALL.fingerprint
    assert loaded.special == SMALL.special
    assert loaded.eos_token_ids == (3,)
    assert loaded.chat_template == CHATML
    assert (loaded.bos_token_id, loaded.add_bos) == (0, False)
    assert loaded.template_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}


def test_fingerprint_depends_on_the_vocabulary() -> None:
    other = small_tokenizer()
    other.vocabulary = (*other.vocabulary[:-1], b"?")
    assert other.fingerprint != SMALL.fingerprint


def test_generation_config_names_what_ends_a_generation(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 6]}')
    assert load_tokenizer(folder).eos_token_ids == (1, 6, 3)


def test_the_template_may_lie_in_a_file_or_among_named_ones(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    folder = write_folder(tmp_path, chat_template=named)
    assert load_tokenizer(folder).chat_template == "yes"
    (folder / "chat_template.jinja").write_text("file")
    assert load_tokenizer(folder).chat_template == "file"


def test_a_post_processor_that_adds_the_first_token_is_noticed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    loaded = load_tokenizer(folder)
    assert loaded.add_bos
    assert 0 not in loaded.encode("a")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "is not JSON"),
        ("tokenizer.json", "[]", "no JSON object"),
        ("tokenizer.json", '{"model": 3}', "cannot be used"),
        ("tokenizer_config.json", "nonsense", "is not JSON"),
    ],
)
def test_a_damaged_folder_is_a_clear_error(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = write_folder(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(TokenizerLoadError, match=message):
        load_tokenizer(folder)


def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerLoadError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_an_unknown_kind_of_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(TokenizerLoadError, match="WordPiece"):
        load_tokenizer(folder)


def test_white_space_beside_a_control_token_may_belong_to_it() -> None:
    tokenizer = small_tokenizer()
    tokenizer.control["<|eot|>"] = Control(6, lstrip=False, rstrip=True)
    tokenizer.control["<s>"] = Control(0, lstrip=True)
    assert list(tokenizer.split_control("a <s> b<|eot|>\n\nc")) == ["a", 0, " b", 6, "c"]
