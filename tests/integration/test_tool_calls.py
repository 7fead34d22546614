"""Tool calls of the real model, through all processes."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

import radixserve as rs
from benchmarks.tool_samples import sample
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.model

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
}
TOOLS = (
    wire.ToolSpec(name="get_weather", description="Weather forecast of a city", parameters=json.dumps(WEATHER)),
    wire.ToolSpec(name="get_time", description="The time of day"),
)


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[rs.Engine]:
    with rs.Engine(str(smollm2_path), kv_tokens=16_384) as running:
        yield running


def run(
    engine: rs.Engine, question: str, tools: tuple[wire.ToolSpec, ...] = TOOLS, **fields: Any
) -> tuple[wire.Done, list[wire.Delta]]:
    """One generation after a question, and its deltas."""
    events: list[wire.Event] = []
    over = threading.Event()

    def hear(event: wire.Event) -> None:
        events.append(event)
        if isinstance(event, wire.Done | wire.Failed | wire.Refused | wire.Goodbye):
            over.set()

    channel = engine.client.open(hear, seed=3)
    channel.send(
        wire.Tools(program=channel.program, op=0, branch=0, tools=tools),
        wire.Append(program=channel.program, op=1, branch=0, parts=(wire.Text(text=question),), role="user"),
        wire.Gen(program=channel.program, op=2, branch=0, var=0, stream=True, **fields),
        flush=True,
    )
    assert over.wait(120)
    channel.close()
    done = events[-1]
    assert isinstance(done, wire.Done), done
    return done, [event for event in events if isinstance(event, wire.Delta)]


def test_a_required_call_at_temperature_one(engine: rs.Engine) -> None:
    done, deltas = run(
        engine,
        "What will the weather be in Oslo?",
        tool_use=wire.ToolUse(mode="required", names=("get_weather",), parallel=False),
        sampling=wire.Sampling(max_tokens=200, temperature=1.0),
    )
    assert (done.finish_reason, done.value) == ("tool_calls", "")
    (call,) = done.calls
    jsonschema.validate(json.loads(call.arguments), WEATHER)
    assert "".join(piece.arguments for delta in deltas for piece in delta.calls) == call.arguments
    assert [id for delta in deltas for id in delta.token_ids] == list(done.token_ids)


def test_a_call_or_the_format(engine: rs.Engine) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "boolean"}}, "required": ["answer"]}
    done, _ = run(
        engine,
        "Is water wet?",
        tool_use=wire.ToolUse(),
        constraint=wire.Constraint(kind="json_schema", source=json.dumps(schema)),
        sampling=wire.Sampling(max_tokens=100, temperature=0.0),
    )
    if done.calls:
        jsonschema.validate(json.loads(done.calls[0].arguments), WEATHER if done.calls[0].name == "get_weather" else {})
    else:
        jsonschema.validate(json.loads(done.value), schema)
    assert done.finish_reason == ("tool_calls" if done.calls else "stop")


def test_many_tools(engine: rs.Engine) -> None:
    samples = [sample(number) for number in range(24)]
    tools = tuple(each.tool for each in samples)
    done, _ = run(
        engine,
        samples[5].request,
        tools,
        tool_use=wire.ToolUse(mode="required", parallel=False),
        sampling=wire.Sampling(max_tokens=300, temperature=0.0),
    )
    by_name = {each.tool.name: each.schema for each in samples}
    if done.finish_reason == "tool_calls":
        jsonschema.validate(json.loads(done.calls[0].arguments), by_name[done.calls[0].name])
    else:
        assert (done.finish_reason, done.calls, done.value) == ("length", (), "")
