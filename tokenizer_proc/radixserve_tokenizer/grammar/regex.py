"""Regular expressions as a tree, so that what reaches the compiler is only what it is known to do right.

The dialect is what ECMAScript (JSON Schema's) and Python have in common. What the compiler would ignore in silence,
such as look-ahead, an anchor in the middle or an unknown escape, is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from radixserve_tokenizer.grammar import charset
from radixserve_tokenizer.grammar.charset import CharSet

MAX_REPEAT = 2000
"""Largest count in {m,n}. Every repetition is a state of the automaton."""
MAX_LENGTH = 4096
MAX_NESTING = 50


class RegexError(ValueError):
    """A regular expression that is malformed or can't be enforced."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    set: CharSet


@dataclass(frozen=True, slots=True)
class Anchor:
    """`^` (start) or `$`."""

    start: bool


@dataclass(frozen=True, slots=True)
class Concat:
    """Parts in a row; none: the empty string."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times; high -1: any number."""

    node: Node
    low: int
    high: int


Node: TypeAlias = Chars | Anchor | Concat | Choice | Repeat

_CLASSES = {
    "d": charset.DIGIT,
    "D": charset.DIGIT.complement(),
    "w": charset.WORD,
    "W": charset.WORD.complement(),
    "s": charset.SPACE,
    "S": charset.SPACE.complement(),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_GROUPS = {
    "(?=": "look-ahead",
    "(?!": "look-ahead",
    "(?<=": "look-behind",
    "(?<!": "look-behind",
    "(?>": "an atomic group",
    "(?#": "a comment",
    "(?(": "a condition",
    "(?P=": "a back-reference",
}


def parse(source: str) -> Node:
    """The tree of a regular expression; raises `RegexError`."""
    if len(source) > MAX_LENGTH:
        raise RegexError(f"the expression is longer than {MAX_LENGTH} characters")
    parser = _Parser(source)
    node = parser.choice(0)
    if parser.place < len(source):
        raise RegexError(f"unmatched ')' at position {parser.place}")
    return node


class _Parser:
    """Recursive descent; `place` is the next character."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.place = 0

    def _looking_at(self, text: str) -> bool:
        return self.source.startswith(text, self.place)

    def _take(self, what: str) -> str:
        if self.place >= len(self.source):
            raise RegexError(f"the expression ends inside {what}")
        char = self.source[self.place]
        self.place += 1
        return char

    def choice(self, nesting: int) -> Node:
        if nesting > MAX_NESTING:
            raise RegexError(f"groups are nested more than {MAX_NESTING} deep")
        options = [self._concat(nesting)]
        while self._looking_at("|"):
            self.place += 1
            options.append(self._concat(nesting))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _concat(self, nesting: int) -> Node:
        parts: list[Node] = []
        while self.place < len(self.source) and self.source[self.place] not in "|)":
            parts.append(self._quantified(self._atom(nesting)))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _atom(self, nesting: int) -> Node:
        char = self._take("the expression")
        if char == "(":
            return self._group(nesting)
        if char == "[":
            return Chars(self._class())
        if char == ".":
            return Chars(charset.LINE_END.complement())
        if char in "^$":
            return Anchor(start=char == "^")
        if char == "\\":
            return Chars(self._escape("an escape"))
        if char in "*+?":
            raise RegexError(f"nothing to repeat at position {self.place - 1}")
        return Chars(charset.chars(char))

    def _group(self, nesting: int) -> Node:
        start = self.place - 1
        if self._looking_at("?"):
            for opening, name in _GROUPS.items():
                if self.source.startswith(opening, start):
                    raise RegexError(f"{name} at position {start} can't be enforced")
            self._skip_group_head(start)
        node = self.choice(nesting + 1)
        if not self._looking_at(")"):
            raise RegexError(f"the group at position {start} is not closed")
        self.place += 1
        return node

    def _skip_group_head(self, start: int) -> None:
        for opening in ("?:", "?<", "?P<"):
            if not self._looking_at(opening):
                continue
            self.place += len(opening)
            if opening != "?:":
                while self._take("a group's name") != ">":
                    pass
            return
        raise RegexError(f"the group at position {start} has flags, which can't be enforced")

    def _quantified(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        if isinstance(node, Anchor):
            raise RegexError("an anchor can't be repeated")
        if self._looking_at("?"):
            self.place += 1  # lazy: the same strings match
        elif self._looking_at("+") or self._bounds() is not None:
            raise RegexError(f"a second quantifier at position {self.place}")
        return Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int] | None:
        """The quantifier here, consumed; None and nothing consumed where there is none."""
        for char, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._looking_at(char):
                self.place += 1
                return bounds
        end = self.source.find("}", self.place)
        if not self._looking_at("{") or end < 0:
            return None
        low, comma, high = self.source[self.place + 1 : end].partition(",")
        if not _is_count(low) or (high and not _is_count(high)):
            return None  # a brace that is no quantifier is a character
        bounds = (int(low), int(high) if high else (-1 if comma else int(low)))
        if 0 <= bounds[1] < bounds[0]:
            raise RegexError(f"the counts in {{{low},{high}}} are the wrong way round")
        if max(bounds) > MAX_REPEAT:
            raise RegexError(f"a count above {MAX_REPEAT} in {{{low}{comma}{high}}}")
        self.place = end + 1
        return bounds

    def _class(self) -> CharSet:
        start = self.place - 1
        negated = self._looking_at("^")
        self.place += negated
        found = CharSet(())
        while not self._looking_at("]"):
            first = self._class_member()
            if not self._looking_at("-") or self.source.startswith("-]", self.place):
                found |= first
                continue
            self.place += 1
            last = self._class_member()
            low, high = _single(first), _single(last)
            if low is None or high is None or low > high:
                raise RegexError(f"a bad range in the class at position {start}")
            found |= CharSet.of([(low, high)])
        self.place += 1
        found = found.complement() if negated else found
        if not found.ranges:
            raise RegexError(f"the class at position {start} is empty")
        return found

    def _class_member(self) -> CharSet:
        char = self._take("a class")
        if char != "\\":
            return charset.chars(char)
        if self._looking_at("b"):
            self.place += 1
            return charset.chars("\b")
        return self._escape("a class")

    def _escape(self, what: str) -> CharSet:
        char = self._take(what)
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return charset.chars(_CONTROLS[char])
        if char in "xu":
            return self._code_point(char)
        if char == "0" and not (self.place < len(self.source) and self.source[self.place].isdigit()):
            return charset.chars("\0")
        if char.isalnum():
            raise RegexError(f"the escape \\{char} can't be enforced")
        return charset.chars(char)

    def _code_point(self, kind: str) -> CharSet:
        if kind == "u" and self._looking_at("{"):
            end = self.source.find("}", self.place)
            digits, self.place = self.source[self.place + 1 : max(end, 0)], end + 1
        else:
            width = 2 if kind == "x" else 4
            digits = self.source[self.place : self.place + width]
            digits = digits if len(digits) == width else ""
            self.place += width
        if not digits or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise RegexError(f"a malformed \\{kind} escape")
        value = int(digits, 16)
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise RegexError(f"\\{kind} escape of something that is no character: {digits}")
        return CharSet.of([(value, value)])


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _single(found: CharSet) -> int | None:
    """The code point of a set of one."""
    return found.ranges[0][0] if len(found.ranges) == 1 and found.ranges[0][0] == found.ranges[0][1] else None


def alternatives(node: Node) -> list[tuple[bool, Node, bool]]:
    """The top-level options as (anchored at the start, content, anchored at the end); raises `RegexError` for other anchors."""
    if isinstance(node, Choice):
        return [found for option in node.options for found in alternatives(option)]
    parts = node.parts if isinstance(node, Concat) else (node,)
    start = bool(parts) and parts[0] == Anchor(start=True)
    parts = parts[1:] if start else parts
    end = bool(parts) and parts[-1] == Anchor(start=False)
    parts = parts[:-1] if end else parts
    if len(parts) == 1 and not start and not end and isinstance(parts[0], Choice | Concat):
        return alternatives(parts[0])
    content = Concat(parts)
    if _has_anchor(content):
        raise RegexError("an anchor (^ or $) inside the expression can't be enforced; only at its start or end")
    return [(start, content, end)]


def _has_anchor(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Concat(parts):
            return any(_has_anchor(part) for part in parts)
        case Choice(options):
            return any(_has_anchor(option) for option in options)
        case Repeat(inner, _, _):
            return _has_anchor(inner)
        case Chars():
            return False
