from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.bench.ask import Outcome, Output
from radixserve.bench.stream import StreamReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EVENTS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "Grüße"}}]},
    {"choices": [{"index": 1, "delta": {"content": "b"}}]},
    {"choices": [{"index": 0, "delta": {"content": " c"}, "finish_reason": "stop"}]},
    {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}},
]


def stream(events: list[dict[str, Any]], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events) + end


def read(pieces: list[bytes], n: int = 2) -> Outcome:
    outcome = Outcome(Output(8, n=n), 0.0)

    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    asyncio.run(StreamReader(outcome).read(chunks()))
    return outcome


@given(cuts=st.lists(st.integers(0, len(stream(EVENTS)))))
def test_a_stream_reads_the_same_however_it_is_cut(cuts: list[int]) -> None:
    whole = stream(EVENTS)
    edges = [0, *sorted(cuts), len(whole)]
    outcome = read([whole[a:b] for a, b in itertools.pairwise(edges)])
    assert outcome.error == ""
    assert outcome.texts == ["Grüße c", "b"]
    assert outcome.finish_reasons == ["stop", "length"]
    assert (outcome.num_chunks, len(outcome.gaps_s)) == (3, 1)
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.reported_tokens) == (9, 5, 4)


def test_lines_may_end_in_carriage_returns() -> None:
    assert read([stream(EVENTS).replace(b"\n", b"\r\n")]).texts == ["Grüße c", "b"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (stream(EVENTS, end=b""), r"without \[DONE\]"),
        (stream([*EVENTS, {"error": {"message": "out of pages"}}]), "out of pages"),
        (b"data: {nonsense\n\ndata: [DONE]\n\n", "no JSON"),
        (b"data: 7\n\ndata: [DONE]\n\n", "no object"),
    ],
)
def test_what_goes_wrong_in_a_stream_is_an_error(data: bytes, problem: str) -> None:
    assert re.search(problem, read([data]).error)


def test_a_server_that_counts_one_choice_of_several_is_not_believed() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    assert read([stream([*EVENTS[:5], usage])]).output_tokens == 3
    assert read([stream([*EVENTS[:5], usage])], n=1).output_tokens == 1


def test_reasoning_and_calls_are_timed_but_are_no_text() -> None:
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "a", "tool_calls": None}}]},
    ]
    outcome = read([stream(events)], n=1)
    assert (outcome.num_chunks, len(outcome.gaps_s), outcome.texts) == (3, 2, ["a"])
    assert outcome.ttft_s is not None
