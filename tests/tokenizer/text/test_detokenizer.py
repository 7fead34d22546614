from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve_tokenizer.text import Detokenizer, cut_at, prompt_tail, special_text
from tests.tokenizer.text.small_tokenizers import small_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Ids 0..255 are single bytes; 256 and on are longer, torn tokens; 260 is a control token.
VOCABULARY = [*(bytes([byte]) for byte in range(256)), b"hello", b"\xe2\x82", b"\xac!", b"\x9f\x98\x80", b""]
EMOJI = list("😀".encode())

outputs = st.lists(
    st.one_of(
        st.sampled_from([*b"ab \n", 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0xE2, 0xFF, *range(256, 261)]), st.integers(0, 260)
    ),
    max_size=24,
)


def raw(ids: Sequence[int]) -> bytes:
    return b"".join(VOCABULARY[id] for id in ids)


@given(outputs, st.data())
def test_joined_deltas_equal_the_text_at_once_whatever_the_cuts(ids: list[int], data: st.DataObject) -> None:
    detokenizer = Detokenizer(VOCABULARY)
    text, at = "", 0
    while at < len(ids):
        size = data.draw(st.integers(1, 5))
        text += detokenizer.feed(ids[at : at + size], hold_bytes=data.draw(st.integers(0, 6)))
        at += size
        assert raw(ids).decode("utf-8", "replace").startswith(text)  # what was shown is final
    assert text + detokenizer.finish() == raw(ids).decode("utf-8", "replace")


@given(outputs, st.integers(0, 8), st.data())
def test_cut_bytes_are_never_shown(ids: list[int], cut: int, data: st.DataObject) -> None:
    total = len(raw(ids))
    cut = min(cut, total)
    detokenizer = Detokenizer(VOCABULARY)
    text = ""
    for index, id in enumerate(ids):
        so_far = len(raw(ids[: index + 1]))
        text += detokenizer.feed([id], hold_bytes=max(0, so_far - (total - cut)) + data.draw(st.integers(0, 2)))
    assert text + detokenizer.finish(cut) == raw(ids)[: total - cut].decode("utf-8", "replace")


def test_characters_are_never_split() -> None:
    detokenizer = Detokenizer(VOCABULARY)
    assert [detokenizer.feed([id]) for id in EMOJI] == ["", "", "", "😀"]
    assert detokenizer.feed([0xC3]) == ""
    assert detokenizer.feed([ord("a")]) == "\ufffda"  # certain now
    assert detokenizer.feed([0xE2]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_a_prompt_that_ends_inside_a_character_is_completed_by_the_output() -> None:
    prompt = [*b"Hello world ", *EMOJI[:3]]
    tail = prompt_tail(VOCABULARY, prompt)
    assert tail == "😀".encode()[:3]
    streamed = Detokenizer(VOCABULARY, prompt_tail=tail)
    assert [streamed.feed([EMOJI[3]]), streamed.feed([ord("!")]), streamed.finish()] == ["😀", "!", ""]
    at_once = Detokenizer(VOCABULARY, prompt_tail=tail)
    assert at_once.feed([EMOJI[3], ord("!")]) + at_once.finish() == "😀!"


@pytest.mark.parametrize("output", [b"", b"a", b"\xf0", "é".encode()])
def test_a_prompt_tail_that_is_not_completed_leaves_no_trace(output: bytes) -> None:
    detokenizer = Detokenizer(VOCABULARY, prompt_tail="😀".encode()[:3])
    text = "".join(detokenizer.feed([byte]) for byte in output) + detokenizer.finish()
    assert text == output.decode("utf-8", "replace")


@given(outputs, outputs, st.data())
def test_prompt_tails_and_cuts(prompt: list[int], output: list[int], data: st.DataObject) -> None:
    tail = prompt_tail(VOCABULARY, prompt)
    assert raw(prompt).endswith(tail)
    assert len(tail) <= 3
    at_once = Detokenizer(VOCABULARY, prompt_tail=tail)
    expected = at_once.feed(output) + at_once.finish()
    cut = data.draw(st.integers(0, len(output)))
    streamed = Detokenizer(VOCABULARY, prompt_tail=tail)
    assert streamed.feed(output[:cut], 2) + streamed.feed(output[cut:]) + streamed.finish() == expected


def test_held_bytes_appear_when_they_are_released() -> None:
    detokenizer = Detokenizer(VOCABULARY)
    assert detokenizer.feed(b"ABCDE", hold_bytes=2) == "ABC"
    assert detokenizer.feed(b"FG", hold_bytes=4) == ""
    assert detokenizer.feed(b"x") == "DEFGx"
    assert detokenizer.num_bytes == 8


def test_cutting_what_was_shown_is_an_error_of_the_caller() -> None:
    detokenizer = Detokenizer(VOCABULARY)
    detokenizer.feed(b"abc")
    with pytest.raises(ValueError, match="1 of the 1 bytes"):
        detokenizer.finish(cut_bytes=1)


def test_control_tokens_are_shown_only_when_wanted_and_count_no_bytes() -> None:
    hidden = Detokenizer(VOCABULARY)
    assert hidden.feed([97, 260, 98]) == "ab"
    shown = Detokenizer(VOCABULARY, special_text={260: b"<end>"})
    assert shown.feed([97, 260, 98, 99, 260], hold_bytes=1) == "a<end>b"
    assert shown.finish(cut_bytes=1) == ""
    kept = Detokenizer(VOCABULARY, special_text={260: b"<end>"})
    assert kept.feed([97, 98, 260], hold_bytes=1) + kept.finish() == "ab<end>"


def test_rows_beyond_the_vocabulary_have_no_text() -> None:
    assert Detokenizer(VOCABULARY).feed([97, 5000]) == "a"


def test_special_texts() -> None:
    tokenizer = small_tokenizer()
    assert special_text(tokenizer)[tokenizer.special["</s>"]] == b"</s>"


@given(st.text(max_size=12), st.integers(0, 40))
def test_a_cut_inside_a_token_keeps_its_text_before_the_cut(text: str, keep: int) -> None:
    tokenizer = small_tokenizer()
    ids = tokenizer.encode("hello" + text)
    keep = min(keep, len(("hello" + text).encode()))
    cut = cut_at(tokenizer, ids, keep)
    assert ids[: len(cut.ids)] == cut.ids
    assert b"".join(tokenizer.vocabulary[id] for id in [*cut.ids, *cut.tail_ids]) == ("hello" + text).encode()[:keep]
    whole = len(b"".join(tokenizer.vocabulary[id] for id in ids[: len(cut.ids) + 1]))
    assert whole > keep or len(cut.ids) == len(ids)  # as many sampled tokens as fit


def test_a_cut_needs_a_place() -> None:
    with pytest.raises(ValueError, match="negative"):
        cut_at(small_tokenizer(), [1], -1)
