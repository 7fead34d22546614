"""The kind "choice": the output is one of some texts."""

from __future__ import annotations

import json

import pytest

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.prepare import MAX_CHOICES_BYTES, prepare
from radixserve_tokenizer.protocol import Constraint


def choice(*texts: str, **dumps: bool) -> Constraint:
    return Constraint(kind="choice", source=json.dumps(texts, **dumps))  # type: ignore[arg-type]


ODD = [
    "a|b",
    "c.d",
    "(e)",
    "f g",
    "x-y/z",
    "\\",
    'say "hi"',
    "é{2}",
    "[h]^$*+?",
    "root ::= x",
    "line\nbreak",
    "👩‍🚀",
    "\x07",
    "a",
    "ab",
]


def test_choices_match_themselves_alone(sentences):
    payload = sentences.compile(choice(*ODD))
    for text in ODD:
        assert sentences.accepts(payload, text), text
    for text in ("", "cxd", "éé", "a|", "b", "abb", "f", "line", "hi"):
        assert not sentences.accepts(payload, text), text
    for seed in range(50):
        drawn, ended = sentences.draw(payload, seed)
        assert ended
        assert drawn.decode() in ODD


def test_some_hundred_choices(sentences):
    texts = [f"option number {index} of a long list, with é and 在线" for index in range(700)]
    payload = sentences.compile(choice(*texts))
    assert all(sentences.accepts(payload, text) for text in texts)
    assert not sentences.accepts(payload, texts[0][:-1])


def test_the_largest_list_compiles(sentences):
    assert len(sentences.compile(choice("x" * MAX_CHOICES_BYTES))) > MAX_CHOICES_BYTES


def test_equal_choices_have_one_key():
    keys = {prepare(one).key for one in (choice("é", "b"), choice("b", "é", "b"), choice("b", "é", ensure_ascii=False))}
    assert len(keys) == 1
    assert prepare(choice("b")).key not in keys


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("[]", "not empty"),
        ('["a", ""]', "not empty"),
        ('["a", 1]', "not empty"),
        ('"abc"', "not empty"),
        ('{"a": 1}', "not empty"),
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        (r'["\ud83d"]', "surrogate"),
        (json.dumps(["é" * (MAX_CHOICES_BYTES // 2), "x"], ensure_ascii=False), f"larger than {MAX_CHOICES_BYTES} bytes"),
        (f"[{' ' * 1_000_000}]", f"larger than {MAX_CHOICES_BYTES} bytes"),
    ],
)
def test_what_is_no_list_of_choices(source, message):
    with pytest.raises(ConstraintError, match=f"choice: .*{message}"):
        prepare(Constraint(kind="choice", source=source))
