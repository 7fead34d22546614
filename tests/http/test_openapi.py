"""The OpenAPI document is true: it resolves, and it allows what we take and answer."""

from __future__ import annotations

import json

import jsonschema
import pytest

from radixserve.http import accounts, chat, completions, health, models_route, tokenize_route
from radixserve.http.messages_api import route as messages_route
from radixserve.http.responses_api import route as responses_route
from radixserve_lang.errors import QueryFailedError
from radixserve_tokenizer.protocol import ToolCall
from tests.http.fake_engine import Script, refusing, scripted
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


def test_every_route_is_described(document):
    described = {(path, method) for path, operations in document["paths"].items() for method in operations}
    routers = [
        module.router
        for module in (chat, completions, responses_route, messages_route, tokenize_route, models_route, accounts, health)
    ]
    served = {
        (route.path.replace("{name:path}", "{name}"), method.lower())
        for router in routers
        for route in router.routes
        for method in route.methods
    }
    assert served - {("/", "get")} == described


def operations(document):
    return [(path, method, one) for path, found in document["paths"].items() for method, one in found.items()]


def call(api, path, method, **headers):
    path = path.replace("{name}", "tiny").replace("{response_id}", "resp_x")
    return api(path, method=method.upper(), **headers) if method != "post" else api(path, raw=b"{}", **headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, None), ({"x_big": "x" * 40_000}, 431), ({"content_type": "text/plain"}, 415), ({"authorization": "Basic x"}, 401)],
)
def test_errors_are_as_described(document, api, fake, headers, status):
    """Whatever goes wrong has a status and a body that the document knows, at each operation."""
    fake.answers["stats"] = fake.answers["health"] = {}
    for path, method, operation in operations(document):
        answer = call(api, path, method, **headers)
        described = operation["responses"].get(str(answer.status_code))
        assert described is not None, (path, method, answer.status_code)
        kind = answer.headers["content-type"].split(";")[0]
        assert kind in described["content"], (path, method, answer.status_code, kind)
        if kind == "application/json":
            resolver(document, described["content"][kind]["schema"]).validate(answer.json())
        if (
            status == 431
            or (status == 415 and method == "post")
            or (status == 401 and "security" in operation and method != "post")
        ):
            assert answer.status_code == status


def test_operations_that_need_a_key_say_so(document, api, fake):
    fake.answers["tenant"] = fake.answers["usage"] = QueryFailedError(401, "no such key")
    fake.answers["stats"] = fake.answers["health"] = {}
    fake.handler = refusing(401, "invalid_api_key", "no such key")
    bodies = {
        CHAT: {"messages": HI},
        TEXT: {"prompt": "x"},
        RESPONSES: {"input": "x"},
        MESSAGES: {"messages": HI, "max_tokens": 5},
        f"{MESSAGES}/count_tokens": {"messages": HI},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }
    for path, method, operation in operations(document):
        answer = api(path, bodies[path]) if method == "post" else call(api, path, method, x_api_key="wrong")
        assert (answer.status_code == 401) == ("security" in operation), (path, method, answer.status_code)
        if answer.status_code == 401:
            assert {"x-api-key": []} in operation["security"]


def test_streams_have_the_type_that_is_described(document, api, fake):
    for path, body in (
        (CHAT, {"messages": HI}),
        (TEXT, {"prompt": "x"}),
        (RESPONSES, {"input": "x"}),
        (MESSAGES, {"messages": HI, "max_tokens": 5}),
    ):
        for stream, kind in ((True, "text/event-stream"), (False, "application/json")):
            assert api(path, {**body, "stream": stream}).headers["content-type"].split(";")[0] == kind
            assert kind in document["paths"][path]["post"]["responses"]["200"]["content"]
    assert sum("text/event-stream" in one["responses"]["200"]["content"] for _, _, one in operations(document)) == 4
