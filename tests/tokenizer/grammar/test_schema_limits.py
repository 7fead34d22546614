"""Schemas that would take for ever are refused by their own count of steps, whatever the machine."""

from __future__ import annotations

import json
import re
import time

import pytest

from benchmarks.hostile_schemas import TOO_COMPLEX
from radixserve_tokenizer.grammar.compiler import CompileError
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.grammar.schema.compile import schema_grammar
from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.source import MAX_NODES
from radixserve_tokenizer.grammar.schema.work import at_most, spend
from radixserve_tokenizer.protocol import Constraint


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", TOO_COMPLEX)
def test_refused_by_name_of_what_is_too_much(name: str, closed: bool) -> None:
    with pytest.raises(TooComplexError, match="too complex"):
        schema_grammar(TOO_COMPLEX[name], closed=closed)


def test_the_check_before_is_linear() -> None:
    """The check runs in the process that serves everyone: of the largest schema that it admits, processor time and not the clock."""
    widest = json.dumps({"enum": [0] * (MAX_NODES - 3)})
    longest = json.dumps({"const": "x" * (250 << 10)})
    for source in (widest, longest, *map(json.dumps, TOO_COMPLEX.values())):
        started_s = time.process_time()
        prepare(Constraint(kind="json_schema", source=source))
        assert time.process_time() - started_s < 1.0, "it takes some ten milliseconds"


def test_a_count_is_of_its_schema() -> None:
    spend(10**12)
    with at_most(5):
        spend(5)
        with pytest.raises(TooComplexError):
            spend(1)
    spend(10**12)


def test_what_means_the_same_is_written_once() -> None:
    text = schema_grammar({
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}}, "required": ["x"]}},
        "type": "object",
        "properties": {f"p{i}": {"$ref": "#/$defs/point", "description": f"{i}"} for i in range(20)},
    })  # fmt: skip
    assert text.count(r"\u0022x\u0022") == 1
    twins = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 700} for i in range(20)}}
    assert schema_grammar(twins).count("basic_string_0_700 ::= ") == 1


@pytest.mark.parametrize(
    "value",
    [
        {"type": "string", "maxLength": 90_000},
        {"type": "string", "minLength": 500, "maxLength": 4096},
        {"type": "string", "pattern": "^[a-z0-9_-]{1,2000}$"},
        {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{1,1500}/x$"},
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4096},
    ],
)
def test_a_length_takes_no_room_however_large(value: dict, sentences) -> None:
    """It is counted beside the grammar: neither rules nor repetitions, in which a mask would take up to a second."""
    text = schema_grammar({"type": "object", "properties": {f"p{i}": value for i in range(4)}})
    assert len(text) < 4000
    assert not re.search(r"\{\d{2,}", text)
    assert len(sentences.compile(Constraint(kind="json_schema", source=json.dumps(value)))) < 100_000


def test_references_that_lead_to_themselves() -> None:
    loop = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}
    with pytest.raises(ValueError, match="back to itself"):
        schema_grammar({**loop, "required": ["x"]})


@pytest.mark.parametrize("grammar", ["root ::= root", "root ::= root | root root", 'root ::= a "x"\na ::= a "y"'])
def test_a_grammar_that_nothing_can_begin(grammar: str, sentences) -> None:
    with pytest.raises(CompileError, match="no text"):
        sentences.compiler.compile("ebnf", grammar)
    assert sentences.accepts(sentences.compiler.compile("ebnf", 'root ::= ""'), "")


def test_a_bound_for_strings_that_have_none(sentences) -> None:
    """It is asked for in the schema itself, so it can be in every request that has one."""
    properties = {
        "a": {"type": "string"},
        "b": {"type": "string", "maxLength": 9},
        "c": {"enum": ["abcdefgh"]},
        "d": {"minLength": 7},
        "e": {},
    }
    schema = {"x-max-text": 5, "type": "object", "properties": properties}
    payload = sentences.compile(Constraint(kind="json_schema", source=json.dumps(schema)))
    for value in ({"a": "12345"}, {"b": "123456789"}, {"c": "abcdefgh"}, {"d": "1234567"}, {"e": ["12345", {"longer_key": 1}]}):
        assert sentences.accepts(payload, json.dumps(value))
    for value in ({"a": "123456"}, {"b": "1234567890"}, {"d": "12345678"}, {"e": ["123456"]}):
        assert not sentences.accepts(payload, json.dumps(value))
    for wrong in (-1, "5", 1.5):
        with pytest.raises(CompileError, match="x-max-text"):
            sentences.compile(Constraint(kind="json_schema", source=json.dumps({"x-max-text": wrong, "type": "string"})))
