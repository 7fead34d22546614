"""The request shapes of common agent clients, and the recorded ones where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixserve.http.responses import ChatAnswer, ErrorAnswer
from tests.http.harness import CHAT, events

RECORDED = Path(__file__).parents[3] / "shared" / "cases" / "client_payloads.jsonl"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "get weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}
CALLED = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "é"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
HI = [{"role": "user", "content": "hi"}]

SHAPES = {
    "plain": {"messages": HI},
    "limit and stop": {"stream": False, "messages": HI, "max_completion_tokens": 16, "stop": ["X"]},
    "history with calls": {"messages": CALLED},
    "history, no tools": {"messages": CALLED, "tools": [], "tool_choice": "auto"},
    "tools, history": {"messages": CALLED, "tools": [WEATHER]},
    "tools, auto": {"messages": CALLED, "tools": [WEATHER], "tool_choice": "auto", "stream": True},
    "tools, none, streamed with usage": {
        "stream": True,
        "messages": CALLED,
        "stream_options": {"include_usage": True},
        "tool_choice": "none",
        "tools": [WEATHER],
    },
    "schema, strict": {
        "messages": HI,
        "response_format": {"type": "json_schema", "json_schema": {"name": "P", "schema": PERSON, "strict": True}},
    },
    "schema, not strict": {
        "messages": HI,
        "response_format": {"type": "json_schema", "json_schema": {"name": "P", "schema": PERSON}},
    },
    "json object": {"messages": HI, "response_format": {"type": "json_object"}},
    "parts and three stops": {
        "messages": [{"role": "system", "content": [{"type": "text", "text": "s"}]}, *HI],
        "stop": ["Observation:", "Calling tools:", "</code>"],
    },
    "required": {"messages": HI, "tool_choice": "required", "tools": [WEATHER], "top_k": 3, "max_tokens": 5},
    "named": {
        "messages": HI,
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "tools": [WEATHER],
    },
}


def refused_field(body):
    """The field that asks for a call of a tool, which is not supported yet."""
    if body.get("tool_choice") not in (None, "auto", "none"):
        return "tool_choice"
    return "tools" if body.get("tools") and body.get("tool_choice") != "none" else None


def check(api, body):
    """A right answer: the stream or the object that was asked for; 400 only where a call may or must be made, saying so."""
    answer = api(CHAT, {**body, "model": "tiny"})
    if refused_field(body):
        assert answer.status_code == 400
        error = ErrorAnswer.model_validate_json(answer.content).error
        assert (error.param, error.code) == (refused_field(body), "unsupported_parameter")
        assert "not supported yet" in error.message
    elif body.get("stream"):
        assert answer.status_code == 200
        chunks = events(answer)
        assert chunks[-1] == "[DONE]"
        assert "".join(c["delta"].get("content") or "" for chunk in chunks[:-1] for c in chunk["choices"]) == "Hello world!"
    else:
        assert answer.status_code == 200, answer.text
        assert ChatAnswer.model_validate_json(answer.content).choices[0].message.content == "Hello world!"


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(api, name):
    check(api, SHAPES[name])


def test_recorded_bodies(api):
    if not RECORDED.exists():
        pytest.skip("the recorded bodies are not part of the repository")
    bodies = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    chats = [one["body"] for one in bodies if one["path"] == CHAT]
    assert chats
    for body in chats:
        check(api, body)
