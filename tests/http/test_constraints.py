from __future__ import annotations

import json
import re

import pytest

from radixserve_tokenizer.protocol import Constraint
from tests.http.harness import CHAT, TEXT

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"心情": {"enum": ["在线", "Sjöfart", "👩‍🚀"]}}}


def sent(api, fake, **more):
    answer = api(CHAT, {"model": "tiny", "messages": HI, **more})
    assert answer.status_code == 200, answer.text
    return fake.last.gens[0].constraint


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def test_response_formats(api, fake):
    assert sent(api, fake, response_format={"type": "text"}) is None
    assert sent(api, fake, response_format={"type": "json_object"}) == Constraint(kind="json_object")
    for strict in ({}, {"strict": True}, {"strict": False}, {"strict": None}):
        constraint = sent(api, fake, response_format=schema_format(SCHEMA, **strict))
        assert constraint.kind == "json_schema"
        assert json.loads(constraint.source) == SCHEMA


def test_one_schema_however_it_was_escaped(api, fake):
    body = {"model": "tiny", "messages": HI, "response_format": schema_format(SCHEMA)}
    found = []
    for ascii_only in (True, False):
        assert api(CHAT, raw=json.dumps(body, ensure_ascii=ascii_only).encode()).status_code == 200
        found.append(fake.last.gens[0].constraint)
    assert found[0] == found[1]


def test_structured_outputs_and_older_names(api, fake):
    assert sent(api, fake, structured_outputs={"regex": "a+"}) == Constraint(kind="regex", source="a+")
    assert sent(api, fake, guided_regex="a+") == Constraint(kind="regex", source="a+")
    assert sent(api, fake, guided_grammar="root ::= x") == Constraint(kind="ebnf", source="root ::= x")
    assert sent(api, fake, structured_outputs={"json_object": True, "regex": None}) == Constraint(kind="json_object")
    assert json.loads(sent(api, fake, structured_outputs={"json": SCHEMA}).source) == SCHEMA
    assert json.loads(sent(api, fake, guided_json=json.dumps(SCHEMA)).source) == SCHEMA
    assert sent(api, fake, structured_outputs={}) is None


def test_choices_match_themselves_alone(api, fake):
    choices = ["a|b", "c.d", "(e)", "f g", "x-y/z", "\\", "é{2}", "[h]^$*+?"]
    constraint = sent(api, fake, guided_choice=choices)
    assert constraint.kind == "regex"
    for choice in choices:
        assert re.fullmatch(constraint.source, choice)
    assert not re.fullmatch(constraint.source, "cxd")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": schema_format(True)}, "response_format.json_schema.schema"),
        ({"response_format": schema_format(None)}, "response_format.json_schema.schema"),
        ({"response_format": schema_format({"enum": ["x" * 300_000]})}, "response_format.json_schema.schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 0}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"nonsense": 1}}, "structured_outputs.nonsense"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ],
)
def test_what_is_no_constraint(api, fake, path, more, param):
    answer = api(path, {"model": "tiny", **({"messages": HI} if path == CHAT else {"prompt": "x"}), **more})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert fake.channels == []


def test_deep_schema(api, fake):
    schema: dict = {}
    for _ in range(200):
        schema = {"items": schema}
    answer = api(CHAT, {"model": "tiny", "messages": HI, "response_format": schema_format(schema)})
    assert answer.status_code == 400
    assert "64" in answer.json()["error"]["message"]
    assert fake.channels == []
