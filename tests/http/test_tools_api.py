"""Tools on chat completions: what reaches the engine, and how calls come back, whole and streamed."""

from __future__ import annotations

import json

import pytest

from radixserve.http.responses import ChatAnswer, ChatChunk
from radixserve_tokenizer.protocol import ToolCall, ToolSpec, ToolUse
from tests.http.fake_engine import Script, failing, scripted
from tests.http.harness import CHAT, events

HI = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "get weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "time"}},
]
CALLS = (ToolCall(id="call_a", name="weather", arguments='{"city": "Köln"}'), ToolCall(id="call_b", name="time", arguments="{}"))


def body(**more):
    return {"model": "tiny", "messages": HI, "tools": TOOLS, **more}


def named(name):
    return {"type": "function", "function": {"name": name}}


def test_the_engine_is_told(api, fake):
    assert api(CHAT, body()).status_code == 200
    weather, time = fake.last.tools
    assert weather == ToolSpec(name="weather", description="get weather", parameters=weather.parameters, strict=True)
    assert json.loads(weather.parameters) == CITY
    assert time == ToolSpec(name="time")
    [gen] = fake.last.gens
    assert gen.tool_use == ToolUse()
    assert gen.parse_reasoning
    assert type(fake.last.messages[0]).__name__ == "Tools"  # before the messages: they are rendered once


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse()),
        ("auto", ToolUse()),
        ("none", None),
        ("required", ToolUse(mode="required")),
        (named("time"), ToolUse(mode="required", names=("time",), parallel=False)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("time")]}},
            ToolUse(mode="auto", names=("time",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}, named("time")]},
            ToolUse(mode="required", names=("weather", "time")),
        ),
    ],
)
def test_choices(api, fake, choice, use):
    assert api(CHAT, body(tool_choice=choice)).status_code == 200
    assert fake.last.gens[0].tool_use == use
    assert [spec.name for spec in fake.last.tools] == ["weather", "time"]  # the prompt is the same for all of them


def test_one_call_at_a_time(api, fake):
    assert api(CHAT, body(parallel_tool_calls=False)).status_code == 200
    assert fake.last.gens[0].tool_use == ToolUse(parallel=False)


def test_a_format_beside_tools(api, fake):
    """Either calls or the format; where a call must be made there is no text for it."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
    assert api(CHAT, body(response_format=form)).status_code == 200
    assert json.loads(fake.last.gens[0].constraint.source) == CITY
    assert api(CHAT, body(response_format=form, tool_choice="required")).status_code == 200
    assert fake.last.gens[0].constraint is None


def test_whole_answer(api, fake):
    fake.handler = scripted(Script(tokens=(), calls=CALLS, reasoning=("let ", "me see")))
    answer = api(CHAT, body())
    ChatAnswer.model_validate_json(answer.content)
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "let me see",
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}},
            {"id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ],
    }


def test_text_beside_calls_and_no_calls(api, fake):
    fake.handler = scripted(Script(tokens=("Let me look.",), calls=CALLS))
    message = api(CHAT, body()).json()["choices"][0]["message"]
    assert (message["content"], len(message["tool_calls"])) == ("Let me look.", 2)
    fake.handler = scripted(Script(tokens=()))
    message = api(CHAT, body()).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "refusal": None}


def joined(deltas):
    """Calls as a client puts them together."""
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        for piece in delta.get("tool_calls", []):
            if piece["index"] not in calls:
                assert piece["type"] == "function"
                assert piece["function"]["arguments"] == ""
                calls[piece["index"]] = {"id": piece["id"], "name": piece["function"]["name"], "arguments": ""}
            else:
                assert set(piece) == {"index", "function"}
                assert set(piece["function"]) == {"arguments"}
                calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return [ToolCall(**calls[index]) for index in sorted(calls)]


@pytest.mark.parametrize("coalesced", [False, True])
@pytest.mark.parametrize("text", [(), ("Let me ", "look.")])
def test_stream(api, fake, coalesced, text):
    fake.handler = scripted(Script(tokens=text, calls=CALLS, reasoning=("hm", "m"), coalesced=coalesced))
    *chunks, usage, done = events(api(CHAT, body(stream=True, stream_options={"include_usage": True})))
    assert done == "[DONE]"
    for chunk in [*chunks, usage]:
        ChatChunk.model_validate(chunk)
    assert usage["usage"]["completion_tokens"] == 3
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hmm"
    assert "".join(delta.get("content") or "" for delta in deltas) == "".join(text)
    assert tuple(joined(deltas)) == CALLS
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert deltas[-1] == {}


def test_stream_of_calls_alone_begins_without_content(api, fake):
    fake.handler = scripted(Script(tokens=(), calls=CALLS[:1]))
    first, begin, *_ = [one["choices"][0]["delta"] for one in events(api(CHAT, body(stream=True))) if one != "[DONE]"]
    assert first == {"role": "assistant", "content": None}
    function = {"name": "weather", "arguments": ""}
    assert begin == {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": function}]}


OLDER = {"messages": HI, "functions": [{"name": "weather", "parameters": CITY}, {"name": "time"}]}


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse(parallel=False)),
        ("auto", ToolUse(parallel=False)),
        ("none", None),
        ({"name": "time"}, ToolUse(mode="required", names=("time",), parallel=False)),
    ],
)
def test_older_functions(api, fake, choice, use):
    fake.handler = scripted(Script(tokens=(), calls=CALLS[:1]))
    [answer] = api(CHAT, {**OLDER, "function_call": choice}).json()["choices"]
    assert fake.last.gens[0].tool_use == use
    assert [spec.name for spec in fake.last.tools] == ["weather", "time"]
    if use is None:
        assert answer["message"]["content"] == ""
        return
    assert answer["message"]["function_call"] == {"name": "weather", "arguments": '{"city": "Köln"}'}
    assert "tool_calls" not in answer["message"]
    assert answer["finish_reason"] == "function_call"
    chunks = [
        one["choices"][0] for one in events(api(CHAT, {**OLDER, "function_call": choice, "stream": True})) if one != "[DONE]"
    ]
    pieces = [chunk["delta"]["function_call"] for chunk in chunks if "function_call" in chunk["delta"]]
    assert pieces[0] == {"name": "weather", "arguments": ""}
    assert "".join(piece["arguments"] for piece in pieces) == '{"city": "Köln"}'
    assert chunks[-1]["finish_reason"] == "function_call"


def test_history(api, fake):
    """Calls and results of both forms reach the template in one."""
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "é"}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "so"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]},
        {"role": "assistant", "content": None, "function_call": {"name": "time", "arguments": "{}"}},
        {"role": "function", "name": "time", "content": "noon"},
    ]
    assert api(CHAT, body(messages=messages)).status_code == 200
    assert fake.last.prompt == [("user", "hi"), ("assistant", ""), ("tool", "sunny"), ("assistant", ""), ("tool", "noon")]
    older = {"id": "call_time", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    assert [one.fields for one in fake.last.appends] == [
        {},
        {"tool_calls": [called], "reasoning_content": "so"},
        {"tool_call_id": "c1"},
        {"tool_calls": [older]},
        {"name": "time", "tool_call_id": "call_time"},
    ]


def test_logprobs_of_calls(api, fake):
    """Every token is told of once, whichever piece of the answer it is in."""
    fake.handler = scripted(Script(tokens=("a", "b"), calls=CALLS[:1]))
    chunks = [one["choices"][0] for one in events(api(CHAT, body(stream=True, logprobs=True))) if one != "[DONE]"]
    assert [e["token"] for chunk in chunks if chunk["logprobs"] for e in chunk["logprobs"]["content"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("more", "said", "param"),
    [
        ({"tools": TOOLS}, "tools[1].parameters", "tools[1].function.parameters"),
        ({"tools": TOOLS}, "tools[0].name", "tools[0].function.name"),
        ({"tools": TOOLS}, "tools[0].parameters#/properties/city", "tools[0].function.parameters#/properties/city"),
        ({"tools": TOOLS}, "tools", "tools"),
        ({"functions": [{"name": "f"}]}, "tools[0].parameters", "functions[0].parameters"),
        ({"functions": [{"name": "f"}]}, "tools", "functions"),
    ],
)
def test_the_engines_errors_name_the_requests_fields(api, fake, more, said, param):
    fake.handler = failing("invalid_grammar", "it can't be enforced", status=400, param=said)
    answer = api(CHAT, {"messages": HI, **more})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
