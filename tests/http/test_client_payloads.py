"""The request shapes of common agent clients."""

from __future__ import annotations

import pytest

from radixserve.http.responses import ChatAnswer
from radixserve.http.responses_api.answers import ResponseObject
from radixserve_tokenizer.protocol import ToolCall
from tests.http.fake_engine import Script, scripted
from tests.http.harness import CHAT, RESPONSES, events

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
    "tools in text, parts everywhere": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "s"}]},
            {"role": "user", "content": [{"type": "text", "text": "New task: hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Calling tools: [{'id': 'c1'}]"}]},
            {"role": "user", "content": [{"type": "text", "text": "Observation: sunny"}]},
        ],
        "stop": ["Observation:", "Calling tools:"],
        "tool_choice": "required",
        "tools": [WEATHER, {"type": "function", "function": {"name": "final_answer", "description": "", "parameters": PERSON}}],
    },
    "named": {
        "messages": HI,
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "tools": [WEATHER],
    },
}


def may_call(body):
    return bool(body.get("tools")) and body.get("tool_choice") != "none"


def check(api, fake, body):
    """A right answer: the stream or the object that was asked for; a call where one may or must be made."""
    name = body["tools"][0]["function"]["name"] if body.get("tools") else ""
    call = ToolCall(id="call_1", name=name, arguments='{"city": "é"}')
    fake.handler = scripted(Script(calls=(call,) if may_call(body) else ()))
    answer = api(CHAT, {**body, "model": "tiny"})
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        chunks = events(answer)
        assert chunks[-1] == "[DONE]"
        deltas = [c["delta"] for chunk in chunks[:-1] for c in chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Hello world!"
        calls = [one for delta in deltas for one in delta.get("tool_calls", [])]
        arguments = "".join(one["function"]["arguments"] for one in calls)
        named = [one["function"]["name"] for one in calls if "name" in one["function"]]
        finish = [c["finish_reason"] for chunk in chunks[:-1] for c in chunk["choices"] if c["finish_reason"]]
    else:
        [choice] = ChatAnswer.model_validate_json(answer.content).choices
        assert choice.message.content == "Hello world!"
        calls = choice.message.tool_calls or []
        arguments, named = "".join(one.function.arguments for one in calls), [one.function.name for one in calls]
        finish = [choice.finish_reason]
    assert (named, arguments) == (([name], call.arguments) if may_call(body) else ([], ""))
    assert finish == ["tool_calls" if may_call(body) else "stop"]
    assert [spec.name for spec in fake.last.tools] == [tool["function"]["name"] for tool in body.get("tools", ())]


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(api, fake, name):
    check(api, fake, SHAPES[name])


def test_openai_agents_default_road(api, fake):
    """The shape that openai-agents sends unless it is told otherwise."""
    fake.handler = scripted(Script(tokens=(), calls=(ToolCall(id="call_1", name="weather", arguments='{"city": "é"}'),)))
    tool = {"type": "function", **WEATHER["function"]}
    body = {"model": "tiny", "include": [], "input": [{"content": "hi", "role": "user"}], "instructions": "s", "tools": [tool]}
    answer = api(RESPONSES, body)
    assert answer.status_code == 200, answer.text
    [item] = ResponseObject.model_validate_json(answer.content).output
    assert (item.type, item.name, item.arguments) == ("function_call", "weather", '{"city": "é"}')
    assert fake.last.prompt == [("system", "s"), ("user", "hi")]
