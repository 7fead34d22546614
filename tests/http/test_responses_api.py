"""/v1/responses: items in, items out, the sequence of events, and going on from what is stored."""

from __future__ import annotations

import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.http.config import HttpConfig
from radixserve.http.program import Segment
from radixserve.http.responses import ErrorAnswer
from radixserve.http.responses_api.answers import ResponseEvent, ResponseObject
from radixserve.http.responses_api.store import ResponseStore
from radixserve_lang.errors import QueryFailedError
from radixserve_tokenizer.protocol import ToolCall, ToolUse
from tests.http.fake_engine import FakeClient, Script, failing, scripted
from tests.http.harness import serving

PATH = "/v1/responses"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "name": "weather", "description": "get weather", "parameters": CITY, "strict": True}
CALLS = (
    ToolCall(id="call_a", name="weather", arguments='{"city": "Köln"}'),
    ToolCall(id="call_b", name="weather", arguments='{"city": "Ulm"}'),
)


def ask(api, value="hi", key="k", **more):
    return api(PATH, {"model": "tiny", "input": value, **more}, authorization=f"Bearer {key}")


def whole(answer):
    assert answer.status_code == 200, answer.text
    ResponseObject.model_validate_json(answer.content)
    return answer.json()


def stream(answer):
    """The events, each checked: their names are their types, their numbers count up."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        ResponseEvent.model_validate(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_text(api, fake):
    body = whole(ask(api, instructions="be brief", temperature=0.5, max_output_tokens=9))
    assert body["status"] == "completed"
    [item] = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "Hello world!", "annotations": [], "logprobs": []}]
    assert body["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 13,
    }
    assert fake.last.prompt == [("system", "be brief"), ("user", "hi")]
    assert (fake.last.gens[0].sampling.max_tokens, fake.last.gens[0].sampling.temperature) == (9, 0.5)
    assert fake.last.gens[0].parse_reasoning


def test_items(api, fake):
    items = [
        {"role": "developer", "content": "s"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "look", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "é"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"type": "function_call", "call_id": "c3", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c3", "output": ""},
    ]
    whole(ask(api, items))
    assert fake.last.prompt == [
        ("system", "s"),
        ("user", "ab"),
        ("assistant", "look"),
        ("tool", "sunny"),
        ("tool", "rain"),
        ("assistant", ""),
        ("tool", ""),
    ]
    turn = fake.last.appends[2].fields
    assert turn["reasoning_content"] == "hm"
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    assert turn["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "é"}'}
    assert [one.fields.get("tool_call_id") for one in fake.last.appends[3:5]] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("choice", "use"),
    [
        (None, ToolUse()),
        ("required", ToolUse(mode="required")),
        ("none", None),
        ({"type": "function", "name": "weather"}, ToolUse(mode="required", names=("weather",), parallel=False)),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            ToolUse(mode="required", names=("weather",)),
        ),
    ],
)
def test_tools(api, fake, choice, use):
    fake.handler = scripted(Script(tokens=(), calls=CALLS, reasoning=("hm",)))
    body = whole(ask(api, tools=[WEATHER], tool_choice=choice))
    assert fake.last.gens[0].tool_use == use
    assert json.loads(fake.last.tools[0].parameters) == CITY
    assert body["tools"] == [WEATHER]
    kinds = [item["type"] for item in body["output"]]
    if use is None:
        assert kinds == ["reasoning"]
        return
    assert kinds == ["reasoning", "function_call", "function_call"]
    assert body["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert [(one["call_id"], one["name"], one["arguments"]) for one in body["output"][1:]] == [
        ("call_a", "weather", '{"city": "Köln"}'),
        ("call_b", "weather", '{"city": "Ulm"}'),
    ]


def test_formats(api, fake):
    form = {"type": "json_schema", "name": "x", "schema": CITY, "strict": True}
    body = whole(ask(api, text={"format": form}))
    assert json.loads(fake.last.gens[0].constraint.source) == CITY
    assert body["text"] == {"format": form}
    whole(ask(api, text={"format": {"type": "json_object"}, "verbosity": "medium"}))
    assert fake.last.gens[0].constraint.kind == "json_object"
    whole(ask(api, guided_regex="a+"))
    assert fake.last.gens[0].constraint.kind == "regex"


def test_cut(api, fake):
    fake.handler = scripted(Script(finish_reason="length"))
    body = whole(ask(api, max_output_tokens=3))
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert stream(ask(api, stream=True))[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("coalesced", [False, True])
def test_events_of_text(api, fake, coalesced):
    fake.handler = scripted(Script(coalesced=coalesced))
    events = stream(ask(api, stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = 1 if coalesced else 3
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "Hello world!"
    last = events[-1]["response"]
    assert last["output"] == [events[-2]["item"]]
    assert last["output"][0]["content"][0]["text"] == "Hello world!"
    assert last["usage"]["output_tokens"] == 3
    assert events[2]["item"]["content"] == []
    assert {event.get("item_id", last["output"][0]["id"]) for event in events} == {last["output"][0]["id"]}


@pytest.mark.parametrize("coalesced", [False, True])
def test_events_of_everything(api, fake, coalesced):
    fake.handler = scripted(Script(tokens=("Let me ", "look."), calls=CALLS, reasoning=("h", "m"), coalesced=coalesced))
    events = stream(ask(api, stream=True, tools=[WEATHER]))
    last = events[-1]["response"]
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call", "function_call"]
    for index, item in enumerate(last["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["status"] == "in_progress"
        assert own[-1] == {**own[-1], "type": "response.output_item.done", "item": item}
        text = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    indices = [event["output_index"] for event in events if "output_index" in event]
    assert indices == sorted(indices)  # one item is open at a time


def test_logprobs(api):
    body = whole(ask(api, include=["message.output_text.logprobs"], top_logprobs=2))
    entries = body["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["Hello", " world", "!"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    events = stream(ask(api, include=["message.output_text.logprobs"], stream=True))
    told = [entry["token"] for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert told == ["Hello", " world", "!"]
    assert len(events[-1]["response"]["output"][0]["content"][0]["logprobs"]) == 3


def test_failure_in_a_stream(api, fake):
    fake.handler = failing("runtime_lost", "the runtime ended", status=503, after=Script())
    events = stream(ask(api, stream=True))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the runtime ended"}
    assert api(f"{PATH}/{events[-1]['response']['id']}", authorization="Bearer k").status_code == 404


# ---- the store ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_going_on(api, fake, streamed):
    fake.handler = scripted(Script(tokens=("Look.",), calls=CALLS[:1]))
    answer = ask(api, instructions="first", tools=[WEATHER], stream=streamed)
    first = stream(answer)[-1]["response"] if streamed else whole(answer)
    fake.handler = scripted(Script())
    result = [{"type": "function_call_output", "call_id": "call_a", "output": "sunny"}]
    second = whole(ask(api, result, instructions="second", previous_response_id=first["id"]))
    assert second["previous_response_id"] == first["id"]
    assert fake.last.prompt == [("system", "second"), ("user", "hi"), ("assistant", "Look."), ("tool", "sunny")]
    assert fake.last.appends[2].fields["tool_calls"][0]["id"] == "call_a"
    whole(ask(api, "more", previous_response_id=second["id"]))
    assert [role for role, _ in fake.last.prompt] == ["user", "assistant", "tool", "assistant", "user"]
    whole(ask(api, "other", previous_response_id=first["id"]))  # a fork
    assert [role for role, _ in fake.last.prompt] == ["user", "assistant", "user"]


def test_reading_and_forgetting(api):
    first = whole(ask(api))
    path = f"{PATH}/{first['id']}"
    assert whole(api(path, authorization="Bearer k")) == first
    assert api(path, method="DELETE", authorization="Bearer k").json() == {
        "id": first["id"],
        "object": "response",
        "deleted": True,
    }
    for method in ("GET", "DELETE"):
        missing = api(path, method=method, authorization="Bearer k")
        assert missing.status_code == 404
        ErrorAnswer.model_validate_json(missing.content)


def test_keys_have_stores_of_their_own(api, fake):
    first = whole(ask(api))
    assert api(f"{PATH}/{first['id']}", authorization="Bearer other").status_code == 404
    assert api(f"{PATH}/{first['id']}", method="DELETE", authorization="Bearer other").status_code == 404
    count = len(fake.channels)
    answer = ask(api, key="other", previous_response_id=first["id"])
    assert answer.json()["error"]["code"] == "previous_response_not_found"
    assert answer.status_code == 400
    assert len(fake.channels) == count
    assert whole(api(f"{PATH}/{first['id']}", authorization="Bearer k")) == first


def test_all_keys_of_a_tenant_share_a_store(api, fake):
    fake.answers["tenant"] = {"tenant": "a"}
    first = whole(ask(api, key="old"))
    second = whole(ask(api, key="new", previous_response_id=first["id"]))
    assert whole(api(f"{PATH}/{second['id']}", authorization="Bearer old")) == second
    assert api(f"{PATH}/{first['id']}", method="DELETE", authorization="Bearer new").status_code == 200


def test_a_wrong_key_finds_nothing(api, fake):
    first = whole(ask(api))
    fake.answers["tenant"] = QueryFailedError(401, "no such key")
    count = len(fake.channels)
    for streamed in (False, True):
        assert ask(api, previous_response_id=first["id"], stream=streamed).status_code == 401
    for method in ("GET", "DELETE"):
        assert api(f"{PATH}/{first['id']}", method=method).status_code == 401
    assert len(fake.channels) == count


def test_what_expires_is_all_that_is_walked():
    now = 0.0
    looked = 0

    class Counted(dict):
        def __getitem__(self, tenant):
            nonlocal looked
            looked += 1
            return super().__getitem__(tenant)

    store = ResponseStore(HttpConfig(stored_ttl_s=100.0), clock=lambda: now)
    store._by_tenant = Counted()
    for number in range(500):
        now = float(number >= 200)
        store.put(f"tenant {number}", {"id": f"r{number}"}, ())
    now, looked = 99.0, 0
    assert store.get("tenant 0", "r0") is not None
    assert looked == 0
    now = 100.5
    assert store.get("tenant 0", "r0") is None
    assert looked == 200
    assert store.get("tenant 499", "r499") is not None
    now = 101.5
    assert store.get("tenant 499", "r499") is None
    assert (looked, store.num_bytes) == (500, 0)


@given(
    st.lists(st.tuples(st.sampled_from(["put", "delete", "get", "wait"]), st.sampled_from("ab"), st.integers(0, 3)), max_size=60)
)
def test_the_store_keeps_its_books(steps):
    now = 0.0
    store = ResponseStore(HttpConfig(stored_ttl_s=5.0, max_stored_per_tenant=3, max_stored_bytes=1000), clock=lambda: now)
    model: dict[tuple[str, str], float] = {}
    for count, (step, tenant, number) in enumerate(steps):
        if step == "put":
            name = f"r{count}"
            store.put(tenant, {"id": name}, (Segment(text="x" * 40),) * number)
            model[tenant, name] = now + 5.0
        elif step == "delete":
            mine = [name for owner, name in model if owner == tenant]
            if mine:
                store.delete(tenant, mine[number % len(mine)])
                del model[tenant, mine[number % len(mine)]]
        elif step == "wait":
            now += number
        held = {key: store.get(*key) for key in model}
        assert all(one is None or model[key] > now for key, one in held.items())
        assert store.num_bytes == sum(one.num_bytes for one in held.values() if one is not None) <= 1000
        assert all(sum(one is not None for key, one in held.items() if key[0] == owner) <= 3 for owner in "ab")


def test_not_stored(api):
    first = whole(ask(api, store=False))
    assert api(f"{PATH}/{first['id']}", authorization="Bearer k").status_code == 404


def test_the_store_is_bounded():
    client = FakeClient()
    with serving(client, HttpConfig(served_names=("tiny",), max_stored_per_tenant=2, stored_ttl_s=1000.0)) as call:
        ids = [whole(ask(call))["id"] for _ in range(3)]
        kept = [call(f"{PATH}/{one}", authorization="Bearer k").status_code for one in ids]
    assert kept == [404, 200, 200]
    client.close()


# ---- what it may not be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": 5}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "guided_regex"),
        ({"text": 5}, "text"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"metadata": [1]}, "metadata"),
        ({"instructions": 5}, "instructions"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"include": 5}, "include"),
    ],
)
def test_refused(api, fake, more, param):
    answer = (
        ask(api, **{"value": "hi", **{name: value for name, value in more.items() if name != "input"}})
        if ("input" not in more)
        else api(PATH, {"model": "tiny", **more})
    )
    assert answer.status_code == 400, answer.text
    assert ErrorAnswer.model_validate_json(answer.content).error.param == param
    assert fake.channels == []


def test_harmless_fields(api):
    more = {
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
        "truncation": "disabled",
        "background": False,
        "user": "u",
        "prompt_cache_key": "k",
        "metadata": {"a": "b"},
        "stream_options": None,
        "max_tool_calls": 3,
        "radixserve": {"program_id": "p"},
    }
    assert whole(ask(api, **more))["metadata"] == {"a": "b"}


# ---- the official client --------------------------------------------------------------------------------------------


def test_the_client(live, fake):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0) as client:
        first = client.responses.create(model="tiny", input="hi")
        assert first.output_text == "Hello world!"
        assert client.responses.retrieve(first.id).output_text == "Hello world!"
        second = client.responses.create(model="tiny", input="more", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
        fake.handler = scripted(Script(tokens=("Look.",), calls=CALLS, reasoning=("hm",)))
        with client.responses.stream(model="tiny", input="hi", tools=[WEATHER]) as events:
            seen = [event.type for event in events]
            final = events.get_final_response()
        assert seen[-1] == "response.completed"
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
        assert final.output[2].arguments == '{"city": "Köln"}'
