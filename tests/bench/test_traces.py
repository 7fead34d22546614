from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.bench.ask import BenchError
from radixserve.bench.traces import Request, read_trace

if TYPE_CHECKING:
    from pathlib import Path


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def request(**fields: Any) -> dict[str, Any]:
    return {"t": 0.0, "type": "n", "in": 130, "out": 7, "stop": "tool_use", "blocks": [[1, 2]], **fields}


def test_agent_sessions(tmp_path: Path) -> None:
    helper = {"type": "subagent", "t": 5.0, "requests": [request(blocks=[[9, 9]], think_time=1.0)]}
    row = {"id": "x", "requests": [request(), request(think_time=3.0, blocks=[[1, 1], [4, 5]]), helper, helper, request()]}
    trace = read_trace(lines(tmp_path / "a.jsonl", row))
    assert (trace.block_tokens, trace.blocks_are_global) == (64, False)
    [session] = trace.sessions
    assert session.start_s is None
    first, second, third = session.stages
    assert first == ((Request((1, 2), 130, 7, 0.0), Request((1, 4, 5), 130, 7, 3.0)),)
    assert second == ((Request((9,), 130, 7, 1.0),),) * 2
    assert third == ((Request((1, 2), 130, 7, 0.0),),)


def test_conversations(tmp_path: Path) -> None:
    row = {"timestamp": 1500, "input_length": 1100, "output_length": 9, "hash_ids": [0, 4, 8]}
    trace = read_trace(lines(tmp_path / "c.jsonl", row))
    assert (trace.block_tokens, trace.blocks_are_global) == (512, True)
    [session] = trace.sessions
    assert session.start_s == 1.5
    assert session.stages == (((Request((0, 4), 1100, 9),),),)  # the third block is not full


def test_arrivals(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:05.4799600,3180,8\n"
    )
    sessions = list(read_trace(file).sessions)
    assert [one.start_s for one in sessions] == [0.0, 1.5]
    assert sessions[1].stages == (((Request((), 3180, 8),),),)


@pytest.mark.parametrize("text", ["", "hello\n", "[1, 2]\n", '{"neither": 1}\n'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x"
    file.write_text(text)
    with pytest.raises(BenchError, match="--trace"):
        read_trace(file)
    with pytest.raises(BenchError, match="--trace"):
        read_trace(tmp_path / "nowhere")


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", {"requests": [request()]})
    file.write_text(file.read_text() + "{\n")
    with pytest.raises(BenchError, match="line 2"):
        list(read_trace(file).sessions)
