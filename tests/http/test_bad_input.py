"""What a request may not be: every answer is a 4xx in OpenAI's form that names the parameter, and no program is started."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.http.config import HttpConfig
from radixserve.http.responses import ErrorAnswer
from tests.http.fake_engine import FakeClient
from tests.http.harness import CHAT, TEXT, serving

HI = [{"role": "user", "content": "hi"}]


def refused(answer, param=None, status=400):
    assert answer.status_code == status, answer.text
    error = ErrorAnswer.model_validate_json(answer.content).error
    assert error.type == "invalid_request_error"
    if param is not None:
        assert error.param == param
        assert param.split(".")[0].split("[")[0] in error.message
    return error


NUMBERS = {
    "temperature": ("0", "2"),
    "top_p": ("0", "1"),
    "min_p": ("0", "1"),
    "presence_penalty": ("-2", "2"),
    "frequency_penalty": ("-2", "2"),
    "repetition_penalty": ("0", "10"),
}


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", ["true", '"0.5"', "1000", "-1000", "[1]", "{}"])
def test_bug_22_numbers(api, fake, field, value):
    error = refused(
        api(CHAT, raw=b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"%s":%s}' % (field.encode(), value.encode())),
        field,
    )
    for limit in NUMBERS[field]:
        assert limit in error.message
    assert fake.channels == []


@pytest.mark.parametrize("field", [*NUMBERS, "top_k", "seed", "logit_bias"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_bug_22_no_numbers_at_all(api, fake, field, value):
    value = f'{{"5": {value}}}' if field == "logit_bias" else value
    refused(api(CHAT, raw=f'{{"model":"tiny","messages":[{{"role":"user","content":"hi"}}],"{field}":{value}}}'.encode()))
    assert fake.channels == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 0.01),
        ("top_k", -2),
        ("seed", 2**70),
        ("seed", 1.5),
        ("seed", True),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**40),
        ("max_tokens", "5"),
        ("n", 1.0),
        ("n", True),
        ("min_tokens", -1),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": True}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"5": None}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1000": 1}),
        ("logit_bias", {"99999999999999999999": 1}),
        ("logit_bias", [1]),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("stream", 1),
        ("stream", "true"),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("service_tier", "gold"),
        ("priority", "high"),
        ("cache_salt", 5),
        ("cache_salt", "x" * 257),
        ("model", 5),
        ("ignore_eos", "yes"),
    ],
)
def test_bug_22_other_fields(api, fake, field, value):
    refused(api(CHAT, {"model": "tiny", "messages": HI, field: value}), field)
    assert fake.channels == []


def test_min_tokens_above_max_tokens(api):
    refused(api(CHAT, {"model": "tiny", "messages": HI, "max_tokens": 2, "min_tokens": 3}), "min_tokens")


def test_max_tokens_by_two_names(api, fake):
    assert api(CHAT, {"model": "tiny", "messages": HI, "max_tokens": 2, "max_completion_tokens": 2}).status_code == 200
    refused(api(CHAT, {"model": "tiny", "messages": HI, "max_tokens": 2, "max_completion_tokens": 3}), "max_tokens")


@pytest.mark.parametrize("hole", ["prompt", "content", "stop", "tool", "schema"])
@pytest.mark.parametrize("text", [rb"\ud83d", rb"x \ude00 y", b"\xff\xfe", b"\xed\xa0\x80", rb"a\u0000b", b"a\x00b"])
def test_bug_21_invalid_unicode(api, fake, hole, text):
    bodies = {
        "prompt": (TEXT, b'{"model":"tiny","prompt":"%s"}'),
        "content": (CHAT, b'{"model":"tiny","messages":[{"role":"user","content":"%s"}]}'),
        "stop": (CHAT, b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stop":["%s"]}'),
        "tool": (
            CHAT,
            b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"tool_choice":"none","tools":[{"type":"function","function":{"name":"f","description":"%s"}}]}',
        ),
        "schema": (
            CHAT,
            b'{"model":"tiny","messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"enum":["%s"]}}}}',
        ),
    }
    path, template = bodies[hole]
    refused(api(path, raw=template % text))
    assert fake.channels == []
    assert api(path, raw=template % rb"\ud83d\ude00 \\u0000").status_code == 200


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"null", b"1", b'{"model":"tiny",}', b"[" * 100_000])
def test_bodies_that_are_no_object(api, raw):
    refused(api(CHAT, raw=raw))


def test_content_type(api):
    refused(api(CHAT, raw=b"{}", content_type="text/plain"), status=415)


def test_body_size():
    client = FakeClient()
    with serving(client, HttpConfig(served_names=("tiny",), max_body_bytes=1000)) as call:
        error = refused(call(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "x" * 1000}]}), status=413)
        assert "1000" in error.message
        assert call(CHAT, {"model": "tiny", "messages": HI}).status_code == 200
    client.close()


def test_headers(api):
    error = refused(api(CHAT, {"model": "tiny", "messages": HI}, x_more="x" * (40 << 10)), status=431)
    assert str(32 << 10) in error.message
    refused(api("/v1/models?" + "x" * (40 << 10)), status=431)
    assert api(CHAT, {"model": "tiny", "messages": HI}, x_more="x" * (20 << 10)).status_code == 200


@pytest.mark.parametrize("count", [4, 5, 16])
def test_bug_23_stops_within_the_limit(api, fake, count):
    assert api(CHAT, {"model": "tiny", "messages": HI, "stop": [f"s{i}" for i in range(count)]}).status_code == 200
    assert len(fake.last.gens[0].sampling.stop) == count


@pytest.mark.parametrize(
    "stop",
    [[f"s{i}" for i in range(1000)], [f"s{i}" for i in range(100_000)], "x" * 1_000_000, [""], "", [1], 5, {}, [["a"]], [None]],
)
def test_bug_23_stops_beyond_it(api, fake, stop):
    refused(api(CHAT, {"model": "tiny", "messages": HI, "stop": stop}), "stop")
    assert fake.channels == []


@pytest.mark.parametrize("ids", [list(range(100_000)), [-1], [1000], ["1"], [True], 5, [1.0]])
def test_bug_23_stop_token_ids(api, fake, ids):
    refused(api(CHAT, {"model": "tiny", "messages": HI, "stop_token_ids": ids}), "stop_token_ids")
    assert fake.channels == []


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        ([1], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "robot", "content": "hi"}], "messages[0].role"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [*HI, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[1].content[1]",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"type": "function", "function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        ([{"role": "assistant", "function_call": {"arguments": "{}"}}], "messages[0].function_call.name"),
        ([{"role": "assistant", "function_call": "f"}], "messages[0].function_call.name"),
        ([{"role": "tool", "tool_call_id": 7, "content": ""}], "messages[0].tool_call_id"),
        (HI * 5000, "messages"),
    ],
)
def test_messages(api, fake, messages, param):
    refused(api(CHAT, {"model": "tiny", "messages": messages}), param)
    assert fake.channels == []


def test_missing_messages_and_prompt(api):
    refused(api(CHAT, {"model": "tiny"}), "messages")
    refused(api(TEXT, {"model": "tiny"}), "prompt")


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "function": {"name": "g"}}, "tool_choice"),
        ({"type": "function"}, "tool_choice.function.name"),
        ({"type": "function", "function": "f"}, "tool_choice.function"),
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": []}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "mode": "none", "tools": [{"name": "f"}]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "tools": [{"name": "g"}]}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": [5]}, "tool_choice.tools[0]"),
        ({"type": "custom", "name": "f"}, "tool_choice"),
        ("sometimes", "tool_choice"),
        (5, "tool_choice"),
        ([], "tool_choice"),
    ],
)
def test_tool_choices_that_are_none(api, fake, choice, param):
    tools = [{"type": "function", "function": {"name": "f"}}]
    refused(api(CHAT, {"model": "tiny", "messages": HI, "tools": tools, "tool_choice": choice}), param)
    assert fake.channels == []


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("tools", [None, []])
def test_a_call_without_tools(api, fake, tools, choice):
    refused(api(CHAT, {"model": "tiny", "messages": HI, "tools": tools, "tool_choice": choice}), "tool_choice")
    assert fake.channels == []


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (5, "tools"),
        ([5], "tools[0]"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "custom", "custom": {"name": "f"}}], "tools[0].type"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "x" * 129}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "f", "description": 5}}], "tools[0].function.description"),
        ([{"type": "function", "function": {"name": "f", "strict": "yes"}}], "tools[0].function.strict"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
        ([{"type": "function", "function": {"name": "f", "parameters": deep(100)}}], "tools[0].function.parameters"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"title": "x" * (300 << 10)}}}],
            "tools[0].function.parameters",
        ),
        ([{"type": "function", "function": {"name": "f"}}] * 2, "tools"),
        ([{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)], "tools"),
        ([{"type": "function", "function": {"name": f"f{i}", "description": "x" * (300 << 10)}} for i in range(4)], "tools"),
    ],
)
def test_tools_beyond_what_they_may_be(api, fake, tools, param):
    refused(api(CHAT, {"model": "tiny", "messages": HI, "tools": tools}), param)
    assert fake.channels == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"functions": [{"name": "f"}], "tools": [{"type": "function", "function": {"name": "f"}}]}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": {"name": "f"}}, "functions"),
    ],
)
def test_older_functions(api, fake, body, param):
    refused(api(CHAT, {"model": "tiny", "messages": HI, **body}), param)
    assert fake.channels == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("reasoning_effort", "high"),
        ("use_beam_search", True),
        ("prompt_logprobs", 1),
        ("prompt_logprobs", 0),
        ("return_token_ids", True),
        ("chat_template", "{{ x }}"),
        ("add_generation_prompt", False),
        ("echo", True),
        ("length_penalty", 2),
        ("structured_outputs", {"whitespace_pattern": " "}),
    ],
)
def test_known_fields_that_cannot_be_honoured(api, fake, field, value):
    refused(api(CHAT, {"model": "tiny", "messages": HI, field: value}), None)
    assert fake.channels == []


def test_the_same_fields_when_they_ask_for_nothing(api):
    harmless = {
        "functions": [],
        "function_call": "auto",
        "modalities": ["text"],
        "use_beam_search": False,
        "length_penalty": 1.0,
        "echo": False,
    }
    assert api(CHAT, {"model": "tiny", "messages": HI, **harmless}).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "prompt",
        "n",
        "stop",
        "temperature",
        "seed",
        "logit_bias",
        "stop_token_ids",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_choice",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "stream_options",
        "service_tier",
        "priority",
        "radixserve",
        "cache_salt",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "echo",
        "best_of",
        "suffix",
        "model",
        "metadata",
    ]
)


@pytest.fixture(scope="module")
def shared():
    client = FakeClient()
    client.answers["detokenize"] = {"text": "x"}
    with serving(client) as call:
        yield call
    client.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from([CHAT, TEXT]), extra=st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_json_is_answered_in_form(shared, path, extra):
    base = {"model": "tiny", **({"messages": HI} if path == CHAT else {"prompt": "x"}), **extra}
    answer = shared(path, raw=json.dumps(base).encode())
    assert answer.status_code in (200, 400, 404), answer.text
    orjson.loads(answer.content)
    if answer.status_code != 200:
        ErrorAnswer.model_validate_json(answer.content)
