"""Regular expressions against Python's own, as a whole output and as the `pattern` of a JSON string."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve_tokenizer.grammar.compiler import CompileError
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.regex import MAX_REPEAT, RegexError, parse
from radixserve_tokenizer.protocol import Constraint

TEXTS = ["".join(letters) for length in range(5) for letters in itertools.product("ab", repeat=length)]
JSON_TEXTS = [
    "a",
    "ab",
    "",
    "é",
    '"',
    "\\",
    "\n",
    "a\tb",
    "👩",
    "\u2028",
    "\x7f",
    "a b",
    "0",
    "_",
    "\x01",
    "\ud7ff",
    "\U0010ffff",
]


def pattern(source: str) -> Constraint:
    return Constraint(kind="json_schema", source=json.dumps({"type": "string", "pattern": source}))


def regex(source: str) -> Constraint:
    return Constraint(kind="regex", source=source)


counts = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}", "+?", "*?"])
expressions = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", "."]),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, counts),
    ),
    max_leaves=5,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=expressions)
def test_the_same_strings_match_as_in_python(source, sentences):
    whole = sentences.compile(regex(source))
    inside = sentences.compile(pattern(f"^(?:{source})$"))
    for text in TEXTS:
        wanted = re.fullmatch(source, text) is not None
        assert sentences.accepts(whole, text) == wanted, text
        assert sentences.accepts(inside, json.dumps(text)) == wanted, text


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=expressions, start=st.booleans(), end=st.booleans())
def test_a_pattern_is_a_search(source, start, end, sentences):
    source = "^" * start + f"(?:{source})" + "$" * end
    payload = sentences.compile(pattern(source))
    for text in TEXTS[::2]:
        assert sentences.accepts(payload, json.dumps(text)) == (re.search(source, text) is not None), text


CHARACTERS = (
    ['["]', r"[\\]", r"[\n\t]", "[^a]", r"\n", ".", r"[\s\S]", r"\d|_", "[à-ÿ]", "👩|é", "[😀-\U0010ffff]", r"\x41|\u00e9"]
    + [r"[\x00-\x1f]", r"\u0001", '[^"]', r"[^\\]", "[a-]", "[-a]", r"[\]]", "a{,2}", "{", "x{a}", "[.*+]", r"\.\*\/\!\-"]
    + ["[^]-`]", "[^b-f]"]
)


@pytest.mark.parametrize("source", CHARACTERS)
def test_characters_inside_a_json_string(source, sentences):
    if source == "[^]-`]":
        source = r"[^\]-`]"
    payload = sentences.compile(pattern(f"^(?:{source})$"))
    python = source.replace("a{,2}", "a[{],2}")  # to ECMAScript these are characters
    for text in [*JSON_TEXTS, "a{,2}", "{", "x{a}", ".*/!-", "A", "]", "-", "*", "b", "f", "`", "g"]:
        wanted = re.fullmatch(python, text) is not None
        if source == "." and text == "\u2028":
            wanted = False  # a line end of ECMAScript
        if wanted and text == "\x01" and source != r"\u0001":
            continue  # written by number only where nothing else can be: stricter
        assert sentences.accepts(payload, json.dumps(text, ensure_ascii=False)) == wanted, (source, text)


def test_reported_bug_11_patterns(sentences):
    for source, text in [(r"^hello there\!$", "hello there!"), (r"^\d{2}$", "42"), (r"^(https:\/\/)x$", "https://x")]:
        payload = sentences.compile(pattern(source))
        assert sentences.accepts(payload, json.dumps(text))
        for seed in range(10):
            output, whole = sentences.draw(payload, seed)
            assert whole
            assert re.search(source, json.loads(output))
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?=a)b$"}}}
    with pytest.raises(CompileError, match="/properties/x: keyword 'pattern' can't be enforced: look-ahead"):
        sentences.compile(Constraint(kind="json_schema", source=json.dumps(schema)))
    with pytest.raises(CompileError, match="not closed"):
        sentences.compile(pattern("^(a$"))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("(?=a)b", "look-ahead"),
        ("(?!a)b", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        ("(?i)a", "flags"),
        ("(?>a)", "atomic"),
        (r"(a)\1", r"\\1"),
        ("(?P<n>a)(?P=n)", "back-reference"),
        (r"\bword", r"\\b"),
        (r"\p{L}", r"\\p"),
        (r"\Aa\Z", r"\\A"),
        (r"\cA", r"\\c"),
        ("a^b", "anchor"),
        ("(^a|b)c", "anchor"),
        ("(a$)+", "anchor"),
        ("^*", "repeated"),
        ("(a", "not closed"),
        ("a)", "unmatched"),
        ("(?<n", "group's name"),
        ("*a", "nothing to repeat"),
        ("a**", "second quantifier"),
        ("a++", "second quantifier"),
        ("a{2}{3}", "second quantifier"),
        ("a{3,2}", "wrong way"),
        (f"a{{1,{MAX_REPEAT + 1}}}", "count above"),
        ("a{99999999999999999999}", "count above"),
        ("[]", "empty"),
        ("[a", "ends inside"),
        ("[b-a]", "range"),
        (r"[\d-z]", "range"),
        ("a\\", "ends inside"),
        (r"\u12", "malformed"),
        (r"\xg0", "malformed"),
        (r"\u{}", "malformed"),
        (r"\u{110000}", "no character"),
        (r"\ud83d", "no character"),
        ("(" * 100 + "a" + ")" * 100, "nested"),
        ("a" * 5000, "longer"),
    ],
)
def test_what_can_not_be_enforced_is_named(source, text, sentences):
    for constraint in (regex(source), pattern(source)):
        with pytest.raises((ConstraintError, CompileError), match=text):
            sentences.compile(constraint)


def test_anchors_at_both_ends_of_options_and_groups(sentences):
    payload = sentences.compile(pattern("(^a$|^b|c$)"))
    for text, wanted in [("a", True), ("aa", False), ("bx", True), ("xc", True), ("x", False), ("xa", False)]:
        assert sentences.accepts(payload, json.dumps(text)) == wanted, text
    assert sentences.accepts(sentences.compile(regex("^a$|^b$")), "b")


@settings(max_examples=300, deadline=None)
@given(source=st.text(alphabet=r"ab01^$.*+?{},()[]|\-:<=!dwsnux", max_size=12))
def test_any_text_is_parsed_or_refused(source):
    try:
        parse(source)
    except RegexError:
        return
    # What is taken, Python's parser takes too, but for braces and classes in which ECMAScript is freer.
    try:
        re.compile(source)
    except re.error:
        assert set(source) & set("{[<"), source


def test_an_empty_regex_is_the_empty_output(sentences):
    payload = sentences.compile(regex(""))
    assert sentences.accepts(payload, "")
    assert not sentences.accepts(payload, "a")
