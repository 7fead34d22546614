"""The OpenAPI document is true: it resolves, and it allows what we take and answer."""

from __future__ import annotations

import json

import jsonschema
import pytest

from radixserve_tokenizer.protocol import ToolCall
from tests.http.fake_engine import Script, scripted
from tests.http.harness import CHAT, MESSAGES, RESPONSES, TEXT, events
from tests.http.test_client_payloads import SHAPES


@pytest.fixture
def document(api):
    return api("/openapi.json").json()


def resolver(document, schema):
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


def refs(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from refs(inner)


def test_every_reference_resolves(document):
    for ref in refs(document):
        assert ref.startswith("#/components/schemas/")
        assert ref.rsplit("/", 1)[1] in document["components"]["schemas"], ref


def body_schema(document, path):
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize("name", SHAPES)
def test_bodies_that_we_take_are_allowed(document, name):
    resolver(document, body_schema(document, CHAT)).validate({"model": "tiny", **SHAPES[name]})


@pytest.mark.parametrize(
    "body", [{"messages": []}, {}, {"messages": [{"role": "user"}], "temperature": 3}, {"messages": [{"role": "user"}], "n": 0}]
)
def test_bodies_that_we_refuse_are_not(document, api, body):
    assert api(CHAT, body).status_code == 400
    with pytest.raises(jsonschema.ValidationError):
        resolver(document, body_schema(document, CHAT)).validate(body)


HI = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKED = {
    CHAT: {"messages": HI, "logprobs": True},
    "chat with tools": {"messages": HI, "tools": [{"type": "function", "function": {"name": "f", "parameters": CITY}}]},
    "chat with functions": {"messages": HI, "functions": [{"name": "f", "parameters": CITY}], "function_call": {"name": "f"}},
    TEXT: {"prompt": "x", "logprobs": 1},
    RESPONSES: {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [{"type": "function", "name": "f", "parameters": CITY, "strict": True}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "top_logprobs": 2,
    },
    MESSAGES: {
        "messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": "The"}]}],
        "max_tokens": 5,
        "tools": [{"name": "f", "input_schema": CITY}],
        "tool_choice": {"type": "any"},
    },
}


@pytest.mark.parametrize("name", ASKED)
def test_answers_are_as_described(document, api, fake, name):
    """What is asked here is allowed, and all that is answered, with calls, reasoning and text, is as the document says."""
    path = CHAT if name.startswith("chat") else name
    call = ToolCall(id="call_1", name="f", arguments='{"city": "Ulm"}')
    fake.handler = scripted(Script(calls=(call,), reasoning=("hm",)))
    body = {"model": "tiny", **ASKED[name]}
    resolver(document, body_schema(document, path)).validate(body)
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    answer = api(path, body)
    assert answer.status_code == 200, answer.text
    resolver(document, content["application/json"]["schema"]).validate(answer.json())
    chunks = [one for one in events(api(path, {**body, "stream": True})) if one != "[DONE]"]
    assert len(chunks) > 3
    for chunk in chunks:
        resolver(document, content["text/event-stream"]["schema"]).validate(chunk)
    error = document["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    resolver(document, error).validate(api(path, {}).json())


def test_no_generated_validation_answer(document):
    """FastAPI's own 422 is never sent, so it isn't promised."""
    assert "HTTPValidationError" not in json.dumps(document)
