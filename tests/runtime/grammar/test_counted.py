"""Strings whose characters the runtime counts: what masks allow is what may be accepted, and that is what the schema means."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.grammar.counted import CountedGrammar
from radixserve_runtime.grammar.request import GrammarError, RequestGrammar
from radixserve_runtime.grammar.store import GrammarStore
from radixserve_tokenizer.grammar.compiler import Compiler
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.protocol import Constraint

EOS = 256
_WORDS = ['": "', '", "', '"', "abc", "ab", "aaaaaaaa", "a" * 30, 'abc"', '"abc', '","ab', "é", "éa", "日本", "😀", "\\n", "\\", '\\"',
          'a\\"b', '\\"a"', "x-1", "-", "1", "12", '"}', "{\"", "zz", "\\u0041", " ", "b-", '"]', '["', '["a', "kind"]  # fmt: skip
VOCABULARY = [
    *(bytes([byte]) for byte in range(256)),
    b"",
    *(word.encode() for word in _WORDS),
    "é".encode() + b"\xc3",
    b"\xa9a",
    b"ab\xe6",
    b"\x97\xa5b",
]


class Store:
    """Grammars by what they are for."""

    def __init__(self) -> None:
        self._store = GrammarStore(VOCABULARY, len(VOCABULARY) + 30, [EOS])
        self._compiler = Compiler(VOCABULARY, [EOS])

    def put(self, kind: str, source: str) -> str:
        key = kind + source
        if not self._store.has(key):
            prepared = prepare(Constraint(kind=kind, source=source))
            self._store.put(key, self._compiler.compile(prepared.kind, prepared.source))
        return key

    def grammar(self, kind: str, source: str) -> RequestGrammar:
        return self._store.matcher(self.put(kind, source))

    def mask(self, grammar: RequestGrammar) -> set[int]:
        row = self._store.new_mask_row()
        grammar.fill(row)
        words = row.tolist()
        return {index for index in range(32 * len(words)) if (words[index // 32] >> index % 32) & 1}

    def accepts(self, kind: str, source: str, text: str) -> bool:
        grammar = self.grammar(kind, source)
        return all(grammar.accept(byte) for byte in text.encode()) and grammar.accept(EOS)


@pytest.fixture(scope="module")
def store() -> Store:
    return Store()


TEXT = st.text(alphabet='ab"\\\n\u00e9\u65e5\U0001f600z-1', max_size=14)
BOUNDS = st.one_of(st.none(), st.integers(0, 12))


def _bounded(low: int | None, high: int | None) -> dict:
    return {"type": "string"} | ({} if low is None else {"minLength": low}) | ({} if high is None else {"maxLength": high})


@settings(max_examples=150, deadline=None)
@given(low=BOUNDS, high=BOUNDS, text=TEXT)
def test_lengths_are_of_characters(low: int | None, high: int | None, text: str, store: Store) -> None:
    schema = {"type": "object", "properties": {"a": _bounded(low, high), "b": {"type": "string"}}, "required": ["a", "b"]}
    if low is not None and high is not None and low > high:
        return
    fits = (low or 0) <= len(text) <= (high if high is not None else len(text))
    for other in ("", text * 3):
        written = json.dumps({"a": text, "b": other}, ensure_ascii=False)
        assert store.accepts("json_schema", json.dumps(schema), written) == fits


SCHEMAS = {
    "bounded": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]},
    "both": {"type": "object", "properties": {"a": {"type": "string", "minLength": 4, "maxLength": 9}}, "required": ["a"]},
    "list": {"type": "array", "items": {"type": "string", "maxLength": 2}},
    "one": {"type": "array", "items": {"type": "string", "maxLength": 1}},
    "exact": {"type": "array", "items": {"type": "string", "minLength": 31, "maxLength": 31}, "minItems": 1, "maxItems": 2},
    "two": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "string", "maxLength": 6}}},
    "words": {"anyOf": [{"type": "string", "maxLength": 3}, {"enum": ["abcdefgh", "ab", "zz-1"]}]},
    "pattern": {"type": "string", "pattern": "^[a-z]{1,12}-[0-9]{2}$"},
    "varying": {"type": "string", "pattern": "^a[a-z]{2,12}-[0-9]{0,2}(x|zz)?$"},
    "varying least": {"type": "string", "pattern": "^[a-z]{4,12}[a1]{1,2}$"},
    "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 11},
    "hash": {"type": "string", "pattern": "^x[0-9a-b]{9}$"},
    "beside": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "string", "pattern": "^(ab)+$"}]},
    "kinds": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "abcabc"}, "v": {"type": "string", "maxLength": 2}}, "required": ["kind", "v"]},
            {"type": "object", "properties": {"kind": {"type": "string", "maxLength": 4}, "w": {"type": "string"}}, "required": ["kind", "w"]},
        ]
    },
    "free": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"], "additionalProperties": True},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_mask_is_what_can_be_accepted(name: str, store: Store) -> None:
    """In all states, token by token; only where a token ends in the middle of a character may the mask leave out some."""
    source = json.dumps(SCHEMAS[name])
    for seed in range(12):
        _walk(store, store.grammar("json_schema", source), random.Random(seed))


def _walk(store: Store, grammar: RequestGrammar, rng: random.Random) -> bytes:
    output = b""
    for _ in range(60):
        allowed = store.mask(grammar)
        assert allowed, output
        for token_id in range(len(VOCABULARY)):
            accepted = grammar.accept(token_id)
            if accepted:
                grammar.rollback(1)
            if accepted != (token_id in allowed):
                assert accepted, (output, VOCABULARY[token_id])
                assert len(VOCABULARY[token_id]) > 1
                assert _is_inside_a_character(output) or b'"' in VOCABULARY[token_id] or b"-" in VOCABULARY[token_id], (
                    output,
                    VOCABULARY[token_id],
                )
        likely = [token_id for token_id in allowed if VOCABULARY[token_id][:1].isascii() or rng.random() < 0.2]
        token_id = rng.choice(likely or sorted(allowed))
        assert grammar.accept(token_id)
        if token_id == EOS:
            break
        output += VOCABULARY[token_id]
    return output


def _is_inside_a_character(output: bytes) -> bool:
    try:
        output.decode()
    except UnicodeDecodeError:
        return True
    return re.search(rb"(^|[^\\])(\\\\)*\\$", output) is not None


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_ends_is_valid(name: str, store: Store) -> None:
    import jsonschema

    ended = 0
    for seed in range(40):
        grammar, rng, output = store.grammar("json_schema", json.dumps(SCHEMAS[name])), random.Random(seed), b""
        for _ in range(200):
            allowed = sorted(store.mask(grammar))
            ends = [token_id for token_id in allowed if token_id == EOS or VOCABULARY[token_id][:1] in (b'"', b"]", b"}")]
            token_id = rng.choice(ends if ends and rng.random() < 0.4 else allowed)
            assert grammar.accept(token_id)
            if token_id == EOS:
                ended += 1
                jsonschema.validate(json.loads(output.decode()), SCHEMAS[name])
                break
            output += VOCABULARY[token_id]
    assert ended


def test_drafts_are_taken_back(store: Store) -> None:
    source = json.dumps(SCHEMAS["two"])
    plain, drafted = store.grammar("json_schema", source), store.grammar("json_schema", source)
    assert isinstance(drafted, CountedGrammar)
    rng = random.Random(5)
    for _ in range(80):
        if not (allowed := sorted(store.mask(plain))) or plain.is_terminated:
            break
        tried = 0
        while tried < 4 and not drafted.is_terminated:
            assert drafted.accept(rng.choice(sorted(store.mask(drafted))))
            tried += 1
        drafted.rollback(tried)
        assert store.mask(drafted) == set(allowed)
        token_id = rng.choice(allowed)
        assert plain.accept(token_id)
        assert drafted.accept(token_id)
        if token_id == EOS:
            break
    with pytest.raises(GrammarError, match="take back"):
        drafted.rollback(1000)


EXPRESSIONS = [
    r"[a-z]{1,20}",
    r"x-\d{12}",
    r"(a|b){9,}",
    r".{3,15}",
    r"[^a]{0,10}-1",
    r"(ab){1,12}",
    r"([a-z]{1,10} ){1,3}",
    r"[ab]{5,12}x?1",
    r"[ab]{3,12}-[b1]{0,3}",
    r"[ab]{9}[abx]{1,3}",
]


@settings(max_examples=200, deadline=None)
@given(expression=st.sampled_from(EXPRESSIONS), data=st.data())
def test_expressions_with_large_counts(expression: str, data: st.DataObject, store: Store) -> None:
    text = data.draw(st.one_of(st.from_regex(expression, fullmatch=True), st.text("abx-1 ", max_size=25)))
    if not any(ord(char) >= 0x100000 or char in "\r\u2028\u2029" for char in text):
        assert store.accepts("regex", expression, text) == bool(re.fullmatch(expression, text, re.ASCII)), text


def test_expressions_drawn(store: Store) -> None:
    for expression in EXPRESSIONS:
        for seed in range(4):
            _walk(store, store.grammar("regex", expression), random.Random(seed))


def test_no_token_can_write_a_mark(store: Store) -> None:
    grammar = store.grammar("json_schema", json.dumps(SCHEMAS["both"]))
    for byte in b'{"a": "':
        assert grammar.accept(byte)
    assert 0xF4 not in store.mask(grammar)
    assert not grammar.accept(0xF4)
    assert grammar.forced() == b""


def test_very_long_lengths(store: Store) -> None:
    for high in (64_998, 64_999, 65_000, 100_000):
        source = json.dumps({"type": "string", "maxLength": high})
        assert store.accepts("json_schema", source, '"abc"')
    grammar = store.grammar("json_schema", json.dumps({"type": "string", "maxLength": 64_999}))
    assert isinstance(grammar, CountedGrammar)
    assert grammar.accept_bytes(b'"' + b"a" * 64_999)
    assert not grammar.accept_bytes(b"a")
    assert grammar.accept_bytes(b'"')
