"""The OpenAPI document is true: it resolves, and it allows what we take and answer."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.http.harness import CHAT, TEXT, events
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


def test_answers_are_as_described(document, api):
    for path, body in ((CHAT, {"messages": [{"role": "user", "content": "hi"}]}), (TEXT, {"prompt": "x"})):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        answer = api(path, {"model": "tiny", **body, "logprobs": True if path == CHAT else 1})
        resolver(document, content["application/json"]["schema"]).validate(answer.json())
        for chunk in events(api(path, {"model": "tiny", **body, "stream": True}))[:-1]:
            resolver(document, content["text/event-stream"]["schema"]).validate(chunk)
        error = document["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
        resolver(document, error).validate(api(path, {}).json())


def test_no_generated_validation_answer(document):
    """FastAPI's own 422 is never sent, so it isn't promised."""
    assert "HTTPValidationError" not in json.dumps(document)
