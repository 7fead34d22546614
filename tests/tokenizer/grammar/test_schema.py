"""What is enforced is enforced exactly; what is not is refused by name. Outputs are drawn at random and validated."""

from __future__ import annotations

import json
import os

import jsonschema
import pytest

from radixserve_tokenizer.grammar.compiler import CompileError, Compiler
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.grammar.schema.compile import schema_grammar
from radixserve_tokenizer.grammar.schema.source import MAX_DEPTH, parse_schema
from radixserve_tokenizer.protocol import Constraint

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}


def schema_constraint(schema, *, is_open: bool = False) -> Constraint:
    kind = "open_json_schema" if is_open else "json_schema"
    return Constraint(kind=kind, source=schema if isinstance(schema, str) else json.dumps(schema))


def refused(schema) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        schema_grammar(parse_schema(schema if isinstance(schema, str) else json.dumps(schema)))
    return caught.value


ENFORCED = [
    TEXT,
    WHOLE,
    {"type": "number"},
    {"type": "boolean"},
    {"type": "null"},
    {},
    {"type": "object"},
    {"type": "array"},
    {"type": ["string", "null"]},
    {"type": ["string", "integer"], "minLength": 2, "minimum": 3},
    {"type": "integer", "minimum": -7, "exclusiveMaximum": 120},
    {"type": "integer", "minimum": 1.5, "maximum": 9.5},
    {"type": "number", "minimum": -1.25, "maximum": 3.75},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 3},
    {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 4},
    {"type": "array", "minItems": 2},
    {"type": "array", "prefixItems": [TEXT, WHOLE], "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5},
    {"type": "array", "prefixItems": [TEXT, TEXT, TEXT], "maxItems": 2},
    {"type": "array", "prefixItems": [TEXT], "minItems": 3},
    {"type": "array", "items": False},
    {"type": "object", "properties": {"a": TEXT, "b": WHOLE, "c": {"type": "null"}}, "required": ["b"]},
    {"type": "object", "properties": {"a": TEXT, "b": WHOLE}, "minProperties": 2, "additionalProperties": False},
    {"type": "object", "properties": {"a": TEXT, "b": WHOLE, "c": TEXT}, "required": ["c"], "maxProperties": 2},
    {"type": "object", "properties": {"a": TEXT}, "additionalProperties": WHOLE, "required": ["a"]},
    {"type": "object", "additionalProperties": WHOLE, "maxProperties": 2},
    {"type": "object", "required": ["z"]},
    {"type": "object", "properties": {"a": TEXT}, "required": ["z", "a"]},
    {"properties": {"a": TEXT}},
    {"enum": ["a", 1, None, 0.1, [1, {"b": 2}], {"c": "d"}, 'q"\\\n\u0001']},
    {"type": ["string", "null"], "enum": ["a", None, 3]},
    {"const": {"a": [1, 2.5, "é\u0000x"]}},
    {"anyOf": [WHOLE, {"type": "null"}, {"type": "object", "properties": {"x": TEXT}, "required": ["x"]}]},
    {"oneOf": [TEXT, WHOLE]},
    {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "v": WHOLE}, "required": ["kind", "v"]},
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        ]
    },
    {
        "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        "discriminator": {"propertyName": "kind"},
        "$defs": {
            "A": {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            "B": {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}, "n": WHOLE}, "required": ["kind"]},
        },
    },
    {"allOf": [WHOLE]},
    {
        "$ref": "#/$defs/N",
        "$defs": {
            "N": {
                "type": "object",
                "properties": {"v": WHOLE, "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}},
                "required": ["v", "next"],
            }
        },
    },
    {"type": "object", "properties": {"child": {"$ref": "#"}}},
    {
        "title": "Person",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "as pydantic writes it",
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Name", "description": "d", "examples": ["x"]},
            "age": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
            "tags": {"type": "array", "items": TEXT, "default": [], "uniqueItems": False},
            "extra": {"type": "object", "additionalProperties": {"type": "number"}},
            "when": {"type": "string", "format": "date-time"},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"},
    {"type": "string", "format": "email"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "hostname"},
    {"type": "string", "format": "duration"},
    {"type": "string", "format": "uri"},
    {"type": "integer", "format": "int32"},
    {"not": TEXT},
    {"type": "object", "properties": {"x": {"not": {"type": ["string", "null"]}}}, "required": ["x"]},
    {"type": "array", "items": WHOLE, "contains": {"minimum": 5}, "maxItems": 4},
    {"type": "array", "items": WHOLE, "contains": {"const": 1}, "minContains": 1, "maxContains": 2},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "dependentRequired": {"a": ["b"]}},
    {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "dependentSchemas": {"a": {"properties": {"b": {"const": "x"}}}}},
    {"type": "object", "patternProperties": {"^x": TEXT}, "properties": {"y": WHOLE}},
    {"type": "object", "patternProperties": {"^x": TEXT}, "additionalProperties": False, "minProperties": 1},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": WHOLE},
    {"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": WHOLE},
    {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": WHOLE}}], "unevaluatedProperties": False},
    {"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False},
    {"type": "integer", "multipleOf": 3},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10},
    {"if": TEXT, "then": {"minLength": 2}, "else": WHOLE},
    {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "n": WHOLE, "t": TEXT},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"required": ["n"]},
        "else": {"required": ["t"]},
    },
    {"$defs": {"a": {"$anchor": "x", "type": "integer"}}, "$ref": "#x", "maximum": 3},
    {"anyOf": [TEXT, WHOLE], "maxLength": 3, "minimum": 2},
    {"anyOf": [TEXT], "oneOf": [TEXT]},
    {"allOf": [TEXT, {"minLength": 2}, {"maxLength": 4}]},
    {"oneOf": [{"type": "number"}, WHOLE]},
    {"oneOf": [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]},
    {"oneOf": [{"type": "object", "properties": {"a": TEXT}, "required": ["a"]}, {"type": "object"}]},
    {"type": "string", "pattern": "^a", "maxLength": 3},
    {"type": "string", "pattern": "a", "format": "email", "maxLength": 12},
    {"type": "string", "format": "date", "minLength": 3},
    {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}},
    {"properties": {"a": False, "b": TEXT}},
    {"enum": [2**53 + 1, 10**17]},
    {"minLength": 1, "minimum": 2},
    {"type": "object", "additionalProperties": WHOLE, "minProperties": 1},
    {"type": "array", "items": [TEXT, WHOLE], "additionalItems": False},
    {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 7},
    {"type": "object", "properties": {"a": TEXT}, "dependencies": {"a": ["b"], "b": {"properties": {"b": WHOLE}}}},
]
#: How a newer or OpenAPI's form says what the validator knows in the current one.
SAME = {
    json.dumps({"type": "array", "items": [TEXT, WHOLE], "additionalItems": False}): {
        "type": "array",
        "prefixItems": [TEXT, WHOLE],
        "items": False,
    },
    json.dumps({"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 7}): {
        "type": "integer",
        "exclusiveMinimum": 3,
        "maximum": 7,
    },
    json.dumps({"type": "object", "properties": {"a": TEXT}, "dependencies": {"a": ["b"], "b": {"properties": {"b": WHOLE}}}}): {
        "type": "object",
        "dependentRequired": {"a": ["b"]},
        "dependentSchemas": {"b": {"properties": {"b": WHOLE}}},
    },
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("schema", ENFORCED, ids=lambda schema: json.dumps(schema)[:60])
def test_every_output_is_valid(schema, is_open, sentences):
    payload = sentences.compile(schema_constraint(schema, is_open=is_open))
    understood = SAME.get(json.dumps(schema), schema)
    validator = jsonschema.Draft202012Validator(understood, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    ended = 0
    for seed in range(40):
        output, whole = sentences.draw(payload, seed)
        if whole:
            ended += 1
            validator.validate(json.loads(output.decode(), parse_float=_exact))
    assert ended >= 5


def _exact(text: str) -> float | int:
    """A validator that divides doubles finds 0.75 to be a multiple of 0.25, but not every 17 digits."""
    return int(float(text)) if float(text).is_integer() else float(text)


REFUSED = [
    ({"$ref": "#/properties/a"}, "", "'$ref'"),
    ({"type": "number", "multipleOf": 0.123456789}, "", "multipleOf"),
    ({"type": "number", "multipleOf": 0}, "", "'multipleOf'"),
    ({"not": {}}, "", "no value"),
    ({"not": {"type": "array", "uniqueItems": True}}, "/not", "'uniqueItems'"),
    ({"type": "string", "nullable": 3}, "", "'nullable'"),
    ({"type": "string", "enum": ["a"], "minLength": 2}, "", "no value"),
    ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "", "no value"),
    ({"items": {"$dynamicRef": "#x"}}, "/items", "'$dynamicRef'"),
    ({"type": "array", "uniqueItems": True}, "", "'uniqueItems'"),
    ({"$dynamicRef": "#x"}, "", "'$dynamicRef'"),
    ({"type": "string", "minLegnth": 3}, "", "'minLegnth'"),
    ({"type": "string", "format": "phone"}, "", "'phone'"),
    ({"type": "object", "properties": {"a/b~c": {"type": "string", "format": "regex"}}}, "/properties/a~1b~0c", "'regex'"),
    ({"type": "array", "prefixItems": [TEXT, {"$ref": "http://x/y"}]}, "/prefixItems/1", "'$ref'"),
    ({"$ref": "#/$defs/missing", "$defs": {}}, "", "'$ref'"),
    ({"$ref": 3}, "", "'$ref'"),
    ({"$ref": "#"}, "", "back to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, TEXT]}}}, "/$defs/a", "back to itself"),
    (False, "", "allows no value"),
    (3, "", "must be an object"),
    ("null", "", "must be an object"),
    ({"items": 3}, "/items", "object, true or false"),
    ({"type": "strin"}, "", "unknown type"),
    ({"type": []}, "", "must not be empty"),
    ({"type": 3}, "", "'type'"),
    ({"enum": []}, "", "'enum'"),
    ({"enum": [1], "type": "string"}, "", "no value"),
    ({"enum": "abc"}, "", "'enum'"),
    ({"type": "integer", "minimum": "3"}, "", "'minimum'"),
    ({"type": "integer", "exclusiveMinimum": True}, "", "'exclusiveMinimum'"),
    ({"type": "string", "minLength": -1}, "", "'minLength'"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "", "no value"),
    ({"type": "array", "maxItems": 10**9}, "", "'maxItems'"),
    ({"type": "array", "items": False, "minItems": 1}, "", "no value"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "", "no value"),
    ({"type": "object", "required": "a"}, "", "'required'"),
    ({"type": "object", "properties": []}, "", "'properties'"),
    ({"type": "object", "properties": {"a": TEXT}, "required": ["a"], "maxProperties": 0}, "", "no value"),
    ({"anyOf": []}, "", "'anyOf'"),
    ("{", "", "valid JSON"),
    ("", "", "valid JSON"),
    ('{"const": NaN}', "", "NaN"),
    ('{"const": 1e999}', "", "JSON"),
    ('{"const": Infinity}', "", "Infinity"),
    ('{"type": "string", "type": "integer"}', "", "twice"),
    (r'{"const": "\ud83d"}', "", "surrogate"),
    (r'{"const": "x \ude00 y"}', "", "surrogate"),
    ('{"const": "\ud83d"}', "", "surrogate"),
    ('{"properties": {"\\ud83d": {}}}', "", "surrogate"),
    ('{"const": "\\q"}', "", "valid JSON"),
    ("[" * 100_000, "", "deep"),
    ('{"items":' * 80 + "{}" + "}" * 80, "/items" * (MAX_DEPTH + 1), "deep"),
    ('{"const":' + "[" * 5000 + "]" * 5000 + "}", "", "deep"),
    ('{"const": "' + "x" * 300_000 + '"}', "", "larger"),
    (json.dumps({"properties": {f"p{i}": {} for i in range(12_000)}}), "/properties/", "more than"),
]


@pytest.mark.parametrize(("schema", "pointer", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_enforced_is_refused_by_name(schema, pointer, text):
    error = refused(schema)
    assert text in str(error)
    assert error.pointer is not None
    assert error.pointer == pointer or (pointer.endswith("/") and error.pointer.startswith(pointer))
    str(error).encode()  # the message itself can be sent


def test_the_message_names_the_place():
    error = refused({"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}})
    assert str(error) == "/properties/x: keyword 'uniqueItems' can't be enforced unless there is at most one item"


def test_definitions_that_nothing_uses_are_not_looked_at():
    bad = {"type": "array", "uniqueItems": True}
    schema_grammar({"type": "string", "$defs": {"unused": bad}})
    assert refused({"$ref": "#/$defs/a", "$defs": {"a": bad}}).pointer == "/$defs/a"


def test_free_objects_and_arrays_may_have_content(sentences):
    for schema, text in [
        ({"type": "object"}, '{"a": [1, {"b": null}]}'),
        ({"type": "array"}, '["x", 2.5]'),
        ({}, "[true]"),
        ({"type": "object", "additionalProperties": True}, '{"a": {"b": 1}}'),
    ]:
        assert sentences.accepts(sentences.compile(schema_constraint(schema)), text), schema


def test_undeclared_properties_are_rejected(sentences):
    payload = sentences.compile(schema_constraint({"type": "object", "properties": {"a": WHOLE}}))
    assert sentences.accepts(payload, '{"a": 1}')
    assert sentences.accepts(payload, "{}")
    assert not sentences.accepts(payload, '{"b": 1}')
    assert not sentences.accepts(payload, '{"a": 1, "b": 1}')


def test_a_declared_name_can_not_come_again_in_disguise(sentences):
    payload = sentences.compile(schema_constraint({"properties": {"a": TEXT}, "additionalProperties": WHOLE}))
    assert sentences.accepts(payload, '{"a": "x", "b": 1}')
    assert not sentences.accepts(payload, '{"a": "x", "a": 1}')
    assert not sentences.accepts(payload, '{"a": "x", "\\u0061": 1}')


def test_strings_of_bounded_length(sentences):
    payload = sentences.compile(schema_constraint({"type": "string", "minLength": 1, "maxLength": 2}))
    for text in ('"a"', '"é👩"', r'"\n\""'):
        assert sentences.accepts(payload, text), text
    for text in ('""', '"abc"', '"\t"', '"\n"', r'"\u00e9"', '"\x1f"'):
        assert not sentences.accepts(payload, text), text


def test_no_lone_surrogate_can_be_written(sentences):
    for schema in (TEXT, {}, {"type": "object"}, {"type": "string", "minLength": 1}, {"type": "string", "pattern": "[^x]"}):
        payload = sentences.compile(schema_constraint(schema))
        for text in (r'"\ud83d"', r'{"\ud83d": 1}', r'{"a": "\udc00"}'):
            assert not sentences.accepts(payload, text)


@pytest.mark.parametrize("escaped", [False, True])
def test_reported_bug_12_unicode_values_and_names(escaped, sentences):
    values = ["在线", "Sjöfart", "👩\u200d🚀", "é1", "ÿfÿ"]
    schema = {"type": "object", "properties": {"心情": {"enum": values}, "öf": {"const": "äb"}}, "required": ["心情", "öf"]}
    source = json.dumps(schema, ensure_ascii=escaped)
    payload = sentences.compile(Constraint(kind="json_schema", source=source))
    for value in values:
        assert sentences.accepts(payload, f'{{"心情": "{value}", "öf": "äb"}}')
    assert not sentences.accepts(payload, json.dumps({"心情": "在线", "öf": "äb"}))
    seen = set()
    for seed in range(60):
        output, whole = sentences.draw(payload, seed)
        assert whole
        seen.add(json.loads(output.decode())["心情"])
    assert seen <= set(values)
    assert len(seen) > 1
    other = json.dumps(schema, ensure_ascii=not escaped)
    assert prepare(Constraint(kind="json_schema", source=other)) == prepare(Constraint(kind="json_schema", source=source))


@pytest.mark.parametrize("constraint", [Constraint(kind="json_object"), schema_constraint({"type": "object"})])
def test_reported_bug_13_white_space_is_bounded(constraint, sentences):
    payload = sentences.compile(constraint)
    blank = {index for index, data in enumerate(sentences.vocabulary) if data and not data.strip()}
    for text in (' {"a": 1}', '{"a": 1} ', '\n{"a": 1}', '{"a":  1}', '{ "a": 1}', '{"a": 1 }', '{"a": 1,\n"b": 2}', "{\n}"):
        assert not sentences.accepts(payload, text), text
    assert sentences.accepts(payload, '{"a": 1, "b": [1, 2], "c": {}}')
    for seed in range(20):
        # A model that writes a blank whenever it may: blanks then run on inside strings alone.
        output, whole = sentences.draw(payload, seed, 60, prefer=lambda allowed: [t for t in allowed if t in blank])
        outside = "".join(output.decode(errors="replace").split('"')[::2])
        assert "  " not in outside
        assert "\n" not in outside
        if whole:
            assert isinstance(json.loads(output), dict)


def test_json_object_is_an_object_of_bounded_depth(sentences):
    payload = sentences.compile(Constraint(kind="json_object"))
    for text in ("{}", '{"a": "x\\n\\"", "b": -1.5e+3, "c": [true, false, null, [], {"d": {}}]}', '{"a": [[[[[]]]]]}'):
        assert sentences.accepts(payload, text), text
    not_objects = ["[]", "1", '"a"', "null", "", "{a: 1}"]
    for text in [*not_objects, '{"a": [[[[[[]]]]]]}', '{"a": 01}', '{"a": .5}', '{"a": "\n"}', '{"a": 1,}', '{"a" : 1}']:
        assert not sentences.accepts(payload, text), text
    ended = 0
    for seed in range(60):
        output, whole = sentences.draw(payload, seed)
        if whole:
            ended += 1
            assert isinstance(json.loads(output.decode()), dict)
    assert ended > 20


def test_ebnf(sentences):
    payload = sentences.compile(Constraint(kind="ebnf", source='root ::= "a" rest\nrest ::= "b" | "c" rest'))
    assert sentences.accepts(payload, "accb")
    assert not sentences.accepts(payload, "ac")
    payload = sentences.compile(Constraint(kind="ebnf", source='root ::= "Sjöfart]" [^a"\\]]* "[^é"'))
    assert sentences.accepts(payload, "Sjöfart]bé[^é")
    for text in ("Sjöfart][^é", "Sjöfart]]["):
        assert sentences.accepts(payload, text) == (text == "Sjöfart][^é")
    assert not sentences.accepts(payload, b"Sj\xc3\xb6fart]\xed\xa0\x80[^\xc3\xa9")  # a surrogate is no UTF-8
    for source in ("", "  ", "x\0", "\ud83d"):
        with pytest.raises(ConstraintError):
            prepare(Constraint(kind="ebnf", source=source))
    for source in ('root ::= "a', "nothing", 'top ::= "a"', "root ::= missing"):
        with pytest.raises(CompileError):
            sentences.compile(Constraint(kind="ebnf", source=source))


def test_a_warning_of_the_compiler_is_an_error(sentences, monkeypatch):
    """What it says on standard error only, it ignores."""
    monkeypatch.setattr(sentences.compiler, "_text", lambda kind, source: _warn())
    with pytest.raises(CompileError, match="is ignored"):
        sentences.compiler.compile("ebnf", "x")
    with pytest.raises(CompileError, match="unknown kind"):
        Compiler([b"a"], [0]).compile("nonsense", "")


def _warn() -> tuple[str, frozenset[int], bool]:
    os.write(2, b"[12:00:00] /x.cc:3: Warning: a keyword is ignored\n")
    return 'root ::= "a"', frozenset(), False


def test_user_text_can_not_pass_for_a_rule(sentences):
    """Names and values that look like what the corrections look for stay names and values."""
    values = [
        'a ::= Regex("^[q]pattern0$", json_string=true)',
        'x\ny ::= (([^"\\\r\n]))',
        r"\ny ::= (([^\"\\\r\n]))",
        "basic_escape ::= ",
        "\\xf6f",
        "\\u00f6",
    ]
    schema = {"type": "object", "properties": {"p": {"enum": values}, "q": {"pattern": "^z$"}}, "required": ["p", "q"]}
    payload = sentences.compile(schema_constraint(schema))
    for value in values:
        assert sentences.accepts(payload, json.dumps({"p": value, "q": "z"}, ensure_ascii=False)), value
    assert not sentences.accepts(payload, json.dumps({"p": values[0], "q": "y"}))
