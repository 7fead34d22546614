"""/v1/messages in Anthropic's form: blocks in, blocks out, the sequence of events, errors, counts."""

from __future__ import annotations

import json

import anthropic
import pytest

from radixserve.http.messages_api.answers import MessageError, MessageEvent, MessageObject
from radixserve_lang.errors import QueryFailedError
from radixserve_tokenizer.protocol import ToolCall, ToolUse
from tests.http.fake_engine import Script, failing, refusing, scripted

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "get weather", "input_schema": CITY, "cache_control": {"type": "ephemeral"}}
CALLS = (
    ToolCall(id="call_a", name="weather", arguments='{"city": "Köln"}'),
    ToolCall(id="call_b", name="weather", arguments='{"city": "Ulm"}'),
)


def ask(api, path=PATH, **more):
    return api(path, {"model": "tiny", "max_tokens": 16, "messages": HI, **more}, x_api_key="sk-1")


def whole(answer):
    assert answer.status_code == 200, answer.text
    MessageObject.model_validate_json(answer.content)
    return answer.json()


def stream(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        MessageEvent.model_validate(event)
        found.append(event)
    return found


def test_answer(api, fake):
    body = whole(ask(api, system="be brief", temperature=0.5, top_k=3, top_p=0.9, stop_sequences=["X", "Y"]))
    assert body["content"] == [{"type": "text", "text": "Hello world!"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }
    assert fake.last.opening["api_key"] == "sk-1"
    assert fake.last.prompt == [("system", "be brief"), ("user", "hi")]
    sampling = fake.last.gens[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (16, 0.5, 3, 0.9)
    assert sampling.stop == ("X", "Y")


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (Script(finish_reason="length"), "max_tokens", None),
        (Script(stop_reason="X"), "stop_sequence", "X"),
        (Script(stop_reason=13), "end_turn", None),
    ],
)
def test_stop_reasons(api, fake, script, reason, sequence):
    fake.handler = scripted(script)
    body = whole(ask(api))
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)
    [delta] = [event for event in stream(ask(api, stream=True)) if event["type"] == "message_delta"]
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_blocks(api, fake):
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "look"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "é"}},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "rain"}], "is_error": True},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    whole(ask(api, messages=messages, system=[{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]))
    assert fake.last.prompt == [
        ("system", "st"),
        ("user", "ab"),
        ("assistant", "look"),
        ("tool", "sunny"),
        ("tool", "rain"),
        ("user", "and now?"),
    ]
    turn = fake.last.appends[2].fields
    assert turn["reasoning_content"] == "hm"
    assert [(call["id"], call["function"]["arguments"]) for call in turn["tool_calls"]] == [("t1", {"city": "é"}), ("t2", {})]
    assert fake.last.appends[4].fields == {"tool_call_id": "t2"}


def test_going_on_from_the_last_message(api, fake):
    whole(ask(api, messages=[*HI, {"role": "assistant", "content": "The answer is"}]))
    assert fake.last.prompt == [("user", "hi"), ("", "The answer is")]
    whole(ask(api, messages=[*HI, {"role": "assistant", "content": ""}]))
    assert fake.last.prompt == [("user", "hi")]


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse()),
        ({"type": "auto"}, ToolUse()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolUse(parallel=False)),
        ({"type": "any"}, ToolUse(mode="required")),
        ({"type": "tool", "name": "weather"}, ToolUse(mode="required", names=("weather",), parallel=False)),
        ({"type": "none"}, None),
    ],
)
def test_tools(api, fake, choice, use):
    fake.handler = scripted(Script(tokens=("Let me look.",), calls=CALLS, reasoning=("hm",)))
    body = whole(ask(api, tools=[WEATHER], tool_choice=choice))
    assert fake.last.gens[0].tool_use == use
    assert json.loads(fake.last.tools[0].parameters) == CITY
    thinking, text, *calls = body["content"]
    assert thinking == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert text == {"type": "text", "text": "Let me look."}
    if use is None:
        assert (calls, body["stop_reason"]) == ([], "end_turn")
    else:
        assert calls[0] == {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Köln"}}
        assert (len(calls), body["stop_reason"]) == (2, "tool_use")


def test_format(api, fake):
    whole(ask(api, output_config={"format": {"type": "json_schema", "schema": CITY}}))
    assert json.loads(fake.last.gens[0].constraint.source) == CITY
    whole(ask(api, output_format={"type": "json_schema", "schema": CITY}))
    assert json.loads(fake.last.gens[0].constraint.source) == CITY


@pytest.mark.parametrize("coalesced", [False, True])
def test_events(api, fake, coalesced):
    fake.handler = scripted(Script(tokens=("Let me ", "look."), calls=CALLS, reasoning=("h", "m"), coalesced=coalesced))
    events = stream(ask(api, stream=True, tools=[WEATHER]))
    assert events[0]["type"] == "message_start"
    assert (events[0]["message"]["content"], events[0]["message"]["stop_reason"]) == ([], None)
    assert events[0]["message"]["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3 if coalesced else 1,
    }
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [(one["index"], one["content_block"]["type"]) for one in starts] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
        (3, "tool_use"),
    ]
    assert starts[2]["content_block"] == {"type": "tool_use", "id": "call_a", "name": "weather", "input": {}}

    def joined(index, field):
        return "".join(e["delta"][field] for e in events if e["type"] == "content_block_delta" and e["index"] == index)

    assert joined(0, "thinking") == "hm"
    assert joined(1, "text") == "Let me look."
    assert [joined(i, "partial_json") for i in (2, 3)] == [call.arguments for call in CALLS]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }


def test_an_answer_without_anything(api, fake):
    fake.handler = scripted(Script(tokens=()))
    assert whole(ask(api))["content"] == []
    assert [event["type"] for event in stream(ask(api, stream=True))] == ["message_start", "message_delta", "message_stop"]


def refused(answer, status, kind):
    assert answer.status_code == status, answer.text
    error = MessageError.model_validate_json(answer.content).error
    assert error.type == kind
    return error.message


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
        ({"messages": [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}]}, "last message"),
        ({"system": 5}, "system"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop": ["x"]}, "stop"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema", "schema": CITY}}, "guided_regex": "a"}, "guided_regex"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"radixserve": {"x": 1}}, "radixserve"),
    ],
)
def test_refused(api, fake, more, named):
    assert named in refused(ask(api, **more), 400, "invalid_request_error")
    assert fake.channels == []


def test_harmless_fields(api):
    more = {
        "metadata": {"user_id": "u"},
        "service_tier": "standard_only",
        "thinking": {"type": "disabled"},
        "output_config": {},
        "mcp_servers": [],
        "seed": 3,
        "tools": None,
        "tool_choice": None,
    }
    whole(ask(api, **more))


def test_errors_have_anthropics_form(api, fake):
    refused(ask(api, model="claude"), 404, "not_found_error")
    refused(api(PATH, raw=b"{"), 400, "invalid_request_error")
    refused(api(f"{PATH}/batches", {}), 404, "not_found_error")
    refused(api(PATH), 405, "invalid_request_error")
    refused(api(PATH, {"model": "tiny", "max_tokens": 1, "messages": HI}, authorization="Basic x"), 401, "authentication_error")
    fake.handler = refusing(401, "invalid_api_key", "no")
    refused(ask(api), 401, "authentication_error")
    fake.handler = refusing(429, "rate_limit_exceeded", "slow down", 2.0)
    answer = ask(api, stream=True)
    refused(answer, 429, "rate_limit_error")
    assert answer.headers["retry-after"] == "2"
    fake.handler = refusing(503, "overloaded", "full", 2.0)
    refused(ask(api), 503, "overloaded_error")
    fake.handler = failing("invalid_value", "bad schema", status=400, param="tools[0].parameters")
    refused(ask(api, tools=[WEATHER]), 400, "invalid_request_error")
    fake.handler = failing("runtime_lost", "the runtime ended", status=503, after=Script())
    assert stream(ask(api, stream=True))[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "the runtime ended"},
    }


def test_count(api, fake):
    fake.answers["tokenize"] = lambda body: {"ids": list(range(len(body["messages"]) if "messages" in body else 3)), "text": ""}
    answer = ask(api, COUNT, tools=[WEATHER], system="s", max_tokens=None)
    assert answer.status_code == 200
    assert answer.json() == {"input_tokens": 2}
    kind, body = fake.queries[-1]
    assert kind == "tokenize"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["name"] == "weather"
    assert ask(api, COUNT, messages=[*HI, {"role": "assistant", "content": "The"}]).json() == {"input_tokens": 4}
    assert fake.channels == []


def test_count_needs_a_key(api, fake):
    fake.answers["tenant"] = QueryFailedError(401, "no such key")
    refused(ask(api, COUNT), 401, "authentication_error")


def test_the_client(live, fake):
    with anthropic.Anthropic(base_url=live.url, api_key="sk-1", max_retries=0) as client:
        answer = client.messages.create(model="tiny", max_tokens=8, messages=HI)
        assert answer.content[0].text == "Hello world!"
        assert fake.last.opening["api_key"] == "sk-1"
        fake.handler = scripted(Script(tokens=("Look.",), calls=CALLS, reasoning=("hm",)))
        with client.messages.stream(model="tiny", max_tokens=8, messages=HI, tools=[WEATHER]) as events:
            assert "".join(events.text_stream) == "Look."
            final = events.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert final.content[2].input == {"city": "Köln"}
        assert (final.stop_reason, final.usage.input_tokens, final.usage.cache_read_input_tokens) == ("tool_use", 6, 4)
        fake.answers["tokenize"] = {"ids": [1, 2, 3], "text": ""}
        assert client.messages.count_tokens(model="tiny", messages=HI).input_tokens == 3
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="claude", max_tokens=8, messages=HI)
