"""Strings as grammar rules."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar import charset
from radixserve_tokenizer.grammar.counts import ANY_MARKS, MARKS, Marks, NoMarksError, is_long
from radixserve_tokenizer.grammar.patterns import inside_json_string, literal_rule, write_expression
from radixserve_tokenizer.grammar.schema.rules import Alt, Seq, Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.grammar.charset import CharSet
    from radixserve_tokenizer.grammar.schema.automaton import Automaton
    from radixserve_tokenizer.grammar.schema.rules import Expr
    from radixserve_tokenizer.grammar.schema.texts import Texts

    Language = Callable[[Automaton, Callable[[CharSet], str]], Expr]
    Once = Callable[[str, Expr], Expr]

QUOTE = Text('"\\""')
_FREE = Text(r'"\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt])* "\""')
_FREE_BESIDE_MARKS = inside_json_string(charset.ANY.without(MARKS))
_FREE_KEY = Text(rf'"\"" {_FREE_BESIDE_MARKS}* "\""')
_FREE_WITH_MARKS = Text(rf'"\"" ({_FREE_BESIDE_MARKS} | {ANY_MARKS})* "\""')


class Strings:
    """Writes the strings of one schema.

    A schema is written twice where lengths are counted: `counts` is what the first time found (empty the first time), and
    `shares` whether different strings may stand at one place, so that all of them have to let marks pass.
    """

    def __init__(
        self,
        once: Once,
        language: Language,
        counts: frozenset[int] = frozenset(),
        *,
        shares: bool = False,
        limit: int | None = None,
    ) -> None:
        """`limit`: the most characters of a string of which nothing else says how it ends."""
        self._once = once
        self._language = language
        self._counts = counts
        self._limit = limit
        self._passes = bool(counts) and shares
        self._marks = Marks(inside_json_string, inside=True)

    @property
    def counts(self) -> frozenset[int]:
        """Characters that got marks so far."""
        return frozenset(self._marks.numbers)

    def value(self, texts: Texts) -> Expr:
        """A string. Raises `TooComplexError`."""
        if self._limit is not None and texts.high is None and not (texts.patterns or texts.excluded) and texts.allowed is None:
            texts = replace(texts, high=max(self._limit, texts.low))
        if texts.allowed is not None:
            return Alt(tuple(Text(self._word(word)) for word in sorted(texts.allowed)))
        if not texts.excluded and not texts.patterns and not texts.low and texts.high is None:
            return self._once("string", _FREE_WITH_MARKS if self._counts else _FREE)
        part = texts.counted()
        if part is not None:
            name = f"string_{texts.low}_{texts.high}"
            body = Text(f'"\\"" {self._marks.text(part, write_expression)} "\\""')
            return self._once(name, body) if not texts.patterns else body
        node = texts.node()
        if node is not None and not is_long(node):
            written: Expr = Text(f"({write_expression(node, self._write_set)})")
        else:
            written = self._language(texts.automaton(), self._write_set)
        return Seq((QUOTE, Text(f"{ANY_MARKS}*"), written, QUOTE)) if self._passes else Seq((QUOTE, written, QUOTE))

    def key(self, language: Automaton | None) -> Expr:
        """The name of a property: of a language, or any. Names are never counted."""
        if language is None:
            return self._once("key", _FREE_KEY) if self._counts else self._once("string", _FREE)
        return Seq((QUOTE, self._language(language, self._unmarked), QUOTE))

    def declared_key(self, name: str) -> Text:
        """A name that the schema tells, and what stands between it and its value."""
        self._check(name)
        return Text(literal_rule(f"{json.dumps(name, ensure_ascii=False)}: "))

    def _word(self, word: str) -> str:
        self._check(word)
        if not self._passes or len(word) < min(self._counts):
            return literal_rule(json.dumps(word, ensure_ascii=False))
        chars = [f"{literal_rule(json.dumps(char, ensure_ascii=False)[1:-1])} {ANY_MARKS}*" for char in word]
        return " ".join(['"\\""', f"{ANY_MARKS}*", *chars, '"\\""'])

    def _check(self, word: str) -> None:
        if self._counts and any(char in MARKS for char in word):
            raise NoMarksError

    def _write_set(self, found: CharSet) -> str:
        return self._marks.passing(found) if self._passes else self._unmarked(found)

    def _unmarked(self, found: CharSet) -> str:
        if not self._counts:
            return inside_json_string(found)
        rest = found.without(MARKS)
        if not rest.ranges:
            raise NoMarksError
        return inside_json_string(rest)
