"""Corrections of grammars' printed texts."""

from __future__ import annotations

import re

from radixserve_runtime.protocol import MARK_INSIDE, MARK_TEXT
from radixserve_tokenizer.grammar.charset import CharSet
from radixserve_tokenizer.grammar.counts import MARKS, NoMarksError
from radixserve_tokenizer.grammar.patterns import plain

#: xgrammar prints U+00F6 as \xf6, and reads as many hexadecimal digits as follow: "Sj\xf6fart" would be another word.
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)", re.DOTALL)
#: A literal or a class in a grammar's text. Classes that say what is not allowed let surrogates through: no UTF-8.
_LITERAL_OR_CLASS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', re.DOTALL)
#: Where a text that is free up to some others names those. (One that is free up to a token takes tokens only.)
_FREE_TEXT = re.compile(r"((?<!Token)TagDispatch\([^\n]*excludes=\()(.)")
_ASKED = rf'"\U{ord(MARK_INSIDE):08x}", "\U{ord(MARK_TEXT):08x}"'
#: A character of a class or literal.
_CHARACTER = re.compile(r"\\U([0-9a-fA-F]{8})|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\(.)|(.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "f": "\f", "v": "\v", "a": "\a", "b": "\b", "e": "\x1b"}


def correct_text(grammar: str) -> str:
    """A grammar's text such that reading it gives the grammar that was printed, and that no class has surrogates in it."""
    grammar = _ESCAPE.sub(lambda found: rf"\u00{found[1]}" if found[1] else found[0], grammar)
    return _LITERAL_OR_CLASS.sub(
        lambda found: rf"[^\ud800-\udfff{found[0][2:]}" if found[0].startswith("[^") else found[0], grammar
    )


def without_marks(grammar: str) -> str:
    """A grammar's text without the characters that marks need. Raises `NoMarksError` where that would leave nothing."""
    text = _LITERAL_OR_CLASS.sub(lambda found: _without_marks(found[0]), grammar)
    # Free text is no class: in it the marks that the runtime asks with must not be found.
    return _FREE_TEXT.sub(lambda found: f"{found[1]}{_ASKED}{', ' if found[2] != ')' else ''}{found[2]}", text)


def _without_marks(found: str) -> str:
    if found.startswith("[^"):
        return rf"[^\U00100000-\U0010ffff{found[2:]}"
    if "\\U0010" not in found and found.isascii():
        return found
    if found.startswith('"'):
        if any(ord(char) >= 0x100000 for char, _ in _characters(found[1:-1])):
            raise NoMarksError
        return found
    rest = _class(found[1:-1]).without(MARKS)
    if not rest.ranges:
        raise NoMarksError
    return plain(rest)


def _class(content: str) -> CharSet:
    """What a class (that isn't negated) holds."""
    chars = _characters(content)
    ranges: list[tuple[int, int]] = []
    place = 0
    while place < len(chars):
        first = last = ord(chars[place][0])
        if place + 2 < len(chars) and chars[place + 1] == ("-", False):
            last = ord(chars[place + 2][0])
            place += 2
        ranges.append((first, last))
        place += 1
    return CharSet.of(ranges)


def _characters(content: str) -> list[tuple[str, bool]]:
    """Each character, and whether it was written as an escape."""
    found: list[tuple[str, bool]] = []
    for match in _CHARACTER.finditer(content):
        number = match[1] or match[2] or match[3]
        char = chr(int(number, 16)) if number else _NAMED.get(match[4], match[4]) if match[4] else match[5]
        found.append((char, match[5] is None))
    return found
