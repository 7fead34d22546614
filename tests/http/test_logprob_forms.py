from __future__ import annotations

import pytest

from radixserve.http.logprobs import CompletionLogprobs, chat_logprobs
from radixserve_tokenizer.protocol import TokenLogprob, TopLogprob

HALVES = [
    TokenLogprob(
        token="\ufffd",
        token_id=1,
        logprob=-1.0,
        raw=b"\xf0\x9f",
        top=(TopLogprob(token="\ufffd", token_id=2, logprob=-2.0, raw=b"\xf0"),),
    ),
    TokenLogprob(token="\ufffd", token_id=3, logprob=-1.0, raw=b"\x98\x80"),
    TokenLogprob(token="x", token_id=4, logprob=float("-inf"), raw=b"x"),
]


def test_pieces_of_a_character():
    logprobs = CompletionLogprobs(1).take(HALVES)
    assert logprobs["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "x"]
    assert logprobs["text_offset"] == [0, 0, 1]
    assert set(logprobs["top_logprobs"][0]) == {"bytes:\\xf0\\x9f", "bytes:\\xf0"}
    assert logprobs["token_logprobs"][2] == -9999.0
    chat = chat_logprobs(HALVES)["content"]
    assert bytes(byte for one in chat for byte in one["bytes"]).decode() == "😀x"
    assert chat[2]["logprob"] == -9999.0


@pytest.mark.parametrize("cut", range(4))
def test_offsets_count_on_over_chunks(cut):
    whole = CompletionLogprobs(0).take(HALVES)["text_offset"]
    parts = CompletionLogprobs(0)
    assert [*parts.take(HALVES[:cut])["text_offset"], *parts.take(HALVES[cut:])["text_offset"]] == whole


@pytest.mark.parametrize(("shown", "offsets"), [(True, [0, 5]), (False, [0, 0])])
def test_control_tokens_take_room_where_they_are_shown(shown, offsets):
    entries = [
        TokenLogprob(token="<bos>", token_id=0, logprob=None, raw=b""),
        TokenLogprob(token="a", token_id=1, logprob=-1.0, raw=b"a"),
    ]
    assert CompletionLogprobs(0, special_in_prompt=shown).take((), entries)["text_offset"] == offsets
    assert CompletionLogprobs(0, special_in_output=shown).take(entries)["text_offset"] == offsets
