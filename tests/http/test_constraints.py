from __future__ import annotations

import json

import pytest

from radixserve_tokenizer.protocol import Constraint
from tests.http.fake_engine import failing
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


@pytest.mark.parametrize(
    "tag",
    [
        {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]},
        {"format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</a>"}},
    ],
)
def test_structural_tags_in_every_place(api, fake, tag):
    tag = {"type": "structural_tag", **tag}
    for more in (
        {"response_format": tag},
        {"structured_outputs": {"structural_tag": tag}},
        {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        {"structural_tag": tag},
    ):
        constraint = sent(api, fake, **more)
        assert (constraint.kind, json.loads(constraint.source)) == ("structural_tag", tag)


def test_choices_go_on_as_they_are(api, fake):
    choices = ["a|b", "f g", "é{2}", *(f"option {number}" for number in range(900))]
    for more in ({"guided_choice": choices}, {"structured_outputs": {"choice": choices}}):
        constraint = sent(api, fake, **more)
        assert (constraint.kind, json.loads(constraint.source)) == ("choice", choices)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": schema_format(SCHEMA)}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_says_of_a_constraint_is_said_of_its_field(api, fake, more, param, stream):
    fake.handler = failing("invalid_grammar", "it is too large", status=400, param="constraint")
    answer = api(CHAT, {"model": "tiny", "messages": HI, "stream": stream, **more})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["message"]) == (param, "invalid_grammar", "it is too large")


def test_a_compiler_that_is_away_is_a_503(api, fake):
    fake.handler = failing("grammar_unavailable", "try again later", status=503)
    answer = api(CHAT, {"model": "tiny", "messages": HI, "guided_regex": "a"})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (None, "grammar_unavailable")


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
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 0}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": 3}}, "structured_outputs.structural_tag"),
        ({"structural_tag": []}, "structural_tag"),
        ({"structured_outputs": {"nonsense": 1}}, "structured_outputs.nonsense"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": 1}},
            "structured_outputs.disable_additional_properties",
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_additional_properties": False}},
            "structured_outputs.disable_additional_properties",
        ),
    ],
)
def test_what_is_no_constraint(api, fake, path, more, param):
    answer = api(path, {"model": "tiny", **({"messages": HI} if path == CHAT else {"prompt": "x"}), **more})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert fake.channels == []


def test_how_large_and_deep_it_may_be_is_the_engines_to_say(api, fake):
    schema: dict = {"enum": ["x" * 300_000]}
    for _ in range(100):
        schema = {"items": schema}
    assert json.loads(sent(api, fake, response_format=schema_format(schema)).source) == schema
    assert sent(api, fake, guided_regex="a" * 300_000).source == "a" * 300_000


def test_a_schema_that_nests_too_deep_to_be_sent_on(api, fake):
    schema: dict = {}
    for _ in range(400):
        schema = {"items": schema}
    answer = api(CHAT, {"model": "tiny", "messages": HI, "response_format": schema_format(schema)})
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], "deep" in answer.json()["error"]["message"]) == (
        "response_format.json_schema.schema",
        True,
    )
    assert fake.channels == []


def test_whether_undeclared_properties_may_be_written(api, fake):
    schema = {"properties": {"a": {}}}
    for closed, kind in [(True, "json_schema"), (None, "json_schema"), (False, "open_json_schema")]:
        asked = {"json": schema, "disable_additional_properties": closed}
        assert sent(api, fake, structured_outputs=asked).kind == kind
