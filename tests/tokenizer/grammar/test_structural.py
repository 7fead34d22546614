"""Structural tags: what is free, what is held to a schema, and what is refused by pointer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixserve_tokenizer.grammar.compiler import CompileError
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.protocol import Constraint

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}, "required": ["city"]}
GET = {"type": "tag", "begin": "<fn=get>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</fn>"}
PUT = {"type": "tag", "begin": "<fn=put>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": ["</fn>", "</put>"]}
OLDER = {"structures": [{"begin": "<fn=get>", "schema": SCHEMA, "end": "</fn>"}], "triggers": ["<fn="]}
CALL = '<fn=get>{"city": "Oslo"}</fn>'


def triggered(**more: Any) -> dict[str, Any]:
    return {"format": {"type": "triggered_tags", "triggers": ["<fn="], "tags": [GET, PUT], **more}}


def compiled(sentences, tag: dict[str, Any]) -> bytes:
    return sentences.compile(Constraint(kind="structural_tag", source=json.dumps(tag)))


CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (
        {"type": "structural_tag", **OLDER},
        ["", 'any "text" é', CALL, f'a "quoted wor{CALL}d" b {CALL}', 'say "five words" here'],
        ["<fn=", '<fn=get>{"city": "Bergen"}</fn>', "<fn=put>1</fn>", '<fn=get>{"city": 1}</fn>'],
    ),
    (triggered(), ["", "x", f"x{CALL}<fn=put>12</put>y"], ["<fn=x", "<fn=put>a</fn>", "<fn=put>1</get>"]),
    (triggered(at_least_one=True), [CALL, f"{CALL} and {CALL}"], ["", f"x{CALL}"]),
    (triggered(stop_after_first=True), ["", "abc", f"abc{CALL}"], [f"{CALL} ", f"{CALL}{CALL}"]),
    (triggered(at_least_one=True, stop_after_first=True), [CALL, "<fn=put>1</fn>"], ["", f"{CALL} "]),
    (triggered(excludes=["no"]), ["yes"], ["no", "so not"]),
    (
        {"format": {"type": "tags_with_separator", "tags": [GET, PUT], "separator": "\n"}},
        ["", CALL, f"{CALL}\n<fn=put>1</fn>"],
        [f"{CALL}{CALL}", f"{CALL}\n", "x"],
    ),
    (
        {
            "format": {
                "type": "tags_with_separator",
                "tags": [PUT],
                "separator": ",",
                "at_least_one": True,
                "stop_after_first": True,
            }
        },
        ["<fn=put>1</fn>"],
        ["", "<fn=put>1</fn>,<fn=put>1</fn>"],
    ),
    (
        {
            "format": {
                "type": "sequence",
                "elements": [
                    {
                        "type": "tag",
                        "begin": "<think>",
                        "content": {"type": "any_text", "excludes": ["<tool>"]},
                        "end": "</think>",
                    },
                    {"type": "optional", "content": {"type": "const_string", "value": "\n"}},
                    {
                        "type": "or",
                        "elements": [
                            {"type": "grammar", "grammar": 'root ::= "yes" | no\nno ::= "no"'},
                            {"type": "json_schema", "json_schema": True},
                        ],
                    },
                ],
            }
        },
        ['<think>"a long thought"</think>\nyes', "<think></think>no", '<think>a</think>{"a": [1]}'],
        ["yes", "<think>a</think>", "<think><tool></think>yes", "<think>a</think></think>yes"],
    ),
    (
        {
            "format": {
                "type": "repeat",
                "min": 1,
                "max": 2,
                "content": {
                    "type": "sequence",
                    "elements": [
                        {"type": "const_string", "value": "a"},
                        {"type": "plus", "content": {"type": "const_string", "value": "b"}},
                    ],
                },
            }
        },
        ["ab", "abbab"],
        ["", "a", "ababab"],
    ),
]


@pytest.mark.parametrize(("tag", "right", "wrong"), CASES)
def test_texts_of_a_tag(tag: dict[str, Any], right: list[str], wrong: list[str], sentences) -> None:
    payload = compiled(sentences, tag)
    for text in right:
        assert sentences.accepts(payload, text), text
    for text in wrong:
        assert not sentences.accepts(payload, text), text


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ({}, "has a 'format'"),
        ({"format": {"type": "qwen_xml_parameter"}}, "^/format/type: a format of the type 'qwen_xml_parameter'"),
        ({"format": {"type": "any_text", "max_tokens": 5}}, "^/format/max_tokens: 'max_tokens' can't be enforced here"),
        ({"format": {"type": "json_schema", "json_schema": {}, "any_order": True}}, "^/format/any_order"),
        ({"format": {"type": "json_schema", "json_schema": []}}, "^/format/json_schema: it must be a JSON Schema"),
        ({"format": {"type": "regex", "pattern": "(?=a)"}}, "^/format/pattern: regex: look-ahead"),
        ({"format": {"type": "sequence", "elements": []}}, "^/format/elements: 'elements' must be a list"),
        ({"format": {"type": "or", "elements": [{"type": "const_string"}]}}, "^/format/elements/0/value"),
        ({"format": {"type": "repeat", "min": 0, "max": 10**6, "content": {"type": "any_text"}}}, "^/format/max"),
        (triggered(triggers=["<x"]), "^/format/tags/0: 'begin' must begin with exactly one"),
        (triggered(triggers=["<fn=", "<x"]), "no tag begins with the trigger '<x'"),
        (triggered(at_least_one="yes"), "^/format/at_least_one"),
        ({"structures": [{"begin": "<a>", "schema": 3, "end": ""}], "triggers": ["<a"]}, "^/structures/0/schema"),
    ],
)
def test_refused_by_pointer_before_anything_is_compiled(tag: dict[str, Any], message: str, sentences) -> None:
    with pytest.raises(ConstraintError, match=message):
        compiled(sentences, tag)


def test_schemas_inside_are_held_to_the_same_check(sentences) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tag = {"format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</a>"}}
    with pytest.raises(CompileError, match=r"^/format/content/json_schema: /properties/a.*uniqueItems"):
        compiled(sentences, tag)


def test_deep_and_wide_ones_are_refused(sentences) -> None:
    deep: dict[str, Any] = {"type": "any_text"}
    for _ in range(40):
        deep = {"type": "optional", "content": deep}
    wide = {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}] * 600}
    for tag in (deep, wide):
        with pytest.raises(ConstraintError, match="more than"):
            compiled(sentences, {"format": tag})


def test_after_reasoning(sentences) -> None:
    """As a part of another composite."""
    from radixserve_tokenizer.grammar.composite import Composite, Part
    from radixserve_tokenizer.grammar.prepare import prepare

    inner = prepare(Constraint(kind="structural_tag", source=json.dumps(OLDER)))
    payload = sentences.compile(Composite('root ::= "<hm>" part0\n', (Part("constraint", inner),)))
    assert sentences.accepts(payload, f"<hm>a {CALL}")
    assert not sentences.accepts(payload, CALL)
