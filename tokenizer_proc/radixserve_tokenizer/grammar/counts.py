"""Texts of which a part has so many characters, written as a grammar in which the runtime counts them.

Such a grammar allows any number of characters and, between them, marks (`radixserve_runtime.protocol.mark`): mark(n) says that the
n-th character follows. What has at most `high` characters takes no mark behind mark(high); what has at least `low` can't end
before it took mark(low). Every other text that may stand at the same place takes any mark, and loses nothing by it.

Marks are characters of the last plane, which for that reason is left out of all that such a grammar allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_runtime.protocol import MARK_INSIDE, MARK_TEXT, MAX_COUNT, MAX_ROUND_COUNT, mark
from radixserve_tokenizer.grammar.charset import CharSet
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.regex import Anchor, Chars, Choice, Concat, Node, Repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    WriteSet = Callable[[CharSet], str]

MARKS = CharSet.of([(0x100000, 0x10FFFF)])
#: In parentheses: of a loop that is followed by a class of longer characters xgrammar 0.2.9 makes masks that allow too much.
ANY_MARKS = r"([\U00100000-\U0010ffff])"
#: Fewer characters than this are written one by one, where that needs no count.
WRITTEN = 2
#: Of a repetition in an expression: so often it is a part of the grammar, which has a state for each time.
MAX_REPEATED = 8
#: Of a class of more characters than this only `WRITTEN` times: nearly every token would have to be tried.
_MANY = 200


@dataclass(frozen=True, slots=True)
class Counted:
    """`low` to `high` of these characters, after some and before some of a fixed number. None: any number."""

    chars: CharSet
    low: int
    high: int | None
    before: tuple[Node, ...] = ()
    after: tuple[Node, ...] = ()


def counted_part(node: Node, low: int = 0, high: int | None = None) -> Counted | None:
    """An expression for a whole text of `low` to `high` characters in that form; None where it hasn't that form."""
    parts = _flat(node)
    place = _place(parts)
    if place is None:
        return None
    region, before, after = parts[place], parts[:place], parts[place + 1 :]
    assert isinstance(region, Repeat)
    chars = _as_chars(region.node)
    widths = [_width(part) for part in after]
    if chars is None or None in map(_width, before):
        return None
    if None in widths:
        # Of a length that varies: then only the region's own is counted, and what follows it has to begin with a character.
        if low or high is not None or not widths[0] or any(map(is_long, after)):
            return None
    elif after and not any(widths):
        return None
    around = sum(_width(part) or 0 for part in (*before, *after))
    highs = [
        one for one in (region.high if region.high >= 0 else None, None if high is None else high - around) if one is not None
    ]
    found = Counted(chars, max(region.low, low - around), min(highs) if highs else None, before, after)
    return found if found.high is None or found.low <= found.high else None


def _place(parts: tuple[Node, ...]) -> int | None:
    """Where the part is whose characters have to be counted: the only one of a length that varies, or else the only long one."""
    varying = [index for index, part in enumerate(parts) if isinstance(part, Repeat) and part.low != part.high]
    if len(varying) != 1:
        varying = [index for index, part in enumerate(parts) if isinstance(part, Repeat) and is_long(part)][
            : 1 if not varying else None
        ]
    return varying[0] if len(varying) == 1 else None


def _flat(node: Node) -> tuple[Node, ...]:
    return tuple(inner for part in node.parts for inner in _flat(part)) if isinstance(node, Concat) else (node,)


def is_long(node: Node) -> bool:
    """Whether something in an expression is repeated often."""
    match node:
        case Chars() | Anchor():
            return False
        case Concat(parts) | Choice(parts):
            return any(map(is_long, parts))
        case Repeat(inner, low, high):
            is_wide = isinstance(inner, Chars) and sum(last - first + 1 for first, last in inner.set.ranges) > _MANY
            return max(low, high) > (WRITTEN if is_wide else MAX_REPEATED) or is_long(inner)


def _as_chars(node: Node) -> CharSet | None:
    match node:
        case Chars(found):
            return found
        case Choice(options):
            found = CharSet(())
            for option in options:
                one = _as_chars(option)
                if one is None:
                    return None
                found |= one
            return found
        case Concat((part,)):
            return _as_chars(part)
        case _:
            return None


def _width(node: Node) -> int | None:
    """How many characters it is always; None if that varies."""
    match node:
        case Chars():
            return 1
        case Concat(parts):
            widths = [_width(part) for part in parts]
            return None if None in widths else sum(width or 0 for width in widths)
        case Choice(options):
            widths = [_width(option) for option in options]
            return widths[0] if len(set(widths)) == 1 else None
        case Repeat(inner, low, high):
            width = _width(inner)
            return low * width if width is not None and low == high else None
        case Anchor():
            return 0


class Marks:
    """Writes counted parts of one grammar and remembers which characters get marks."""

    def __init__(self, write_set: WriteSet, *, inside: bool) -> None:
        """`inside`: JSON strings, else a whole output."""
        self._write_set = write_set
        self._inside = MARK_INSIDE if inside else MARK_TEXT
        self.numbers: set[int] = set()

    def text(self, part: Counted, write: Callable[[Node, WriteSet], str]) -> str:
        """EBNF of it. Raises `ConstraintError` for characters that a grammar with marks can't have, and lengths that are too large."""
        around = sum(_width(node) or 0 for node in part.before)
        high = None if part.high is None else _high(around + part.high)
        taken = self._up_to(high)
        char = self._write_set(without_marks(part.chars))
        loop = f"({char} | {taken})*"
        if part.low <= WRITTEN:
            middle = f"{taken}* " + " ".join([f"{char} {taken}*"] * part.low) + f" {loop}"
        else:
            # What stands behind is at least a character, whose number then tells that there were enough before it.
            middle = f'{loop} "{_char(mark(self._low(around + part.low + bool(part.after))))}" {loop}'
        pieces = [middle]
        if part.before:
            # No mark of what comes later may be taken too early.
            own = self._class(around)
            pieces.insert(0, " ".join([f"{own}*", *(write(node, lambda one: self.passing(one, own)) for node in part.before)]))
        if part.after:
            pieces += [f"{ANY_MARKS}*", *(write(node, self.passing) for node in part.after)]
        return " ".join(pieces)

    def passing(self, found: CharSet, marks: str = ANY_MARKS) -> str:
        """One of these characters, and whatever marks are behind it."""
        return f"({self._write_set(without_marks(found))} {marks}*)"

    def _up_to(self, high: int | None) -> str:
        if high is None:
            return ANY_MARKS
        self.numbers.add(high + 1)
        return self._class(high)

    def _class(self, high: int) -> str:
        return rf"([\U00100000-{_char(chr(ord(mark(high + 1)) - 1))}{_char(self._inside)}])"

    def _low(self, number: int) -> int:
        if number > MAX_COUNT:
            raise ConstraintError(f"a length of at least {number} characters can't be enforced, only up to {MAX_COUNT}")
        self.numbers.add(number)
        return number


def _high(high: int) -> int:
    """Very long ones are cut to a length that has a mark: nothing gets that far."""
    if high < MAX_COUNT:
        return high
    return min(high + 1 - (high + 1) % 1000, MAX_ROUND_COUNT) - 1


def without_marks(found: CharSet) -> CharSet:
    """Raises `ConstraintError` where nothing is left."""
    rest = found.without(MARKS)
    if not rest.ranges:
        raise NoMarksError
    return rest


class NoMarksError(ConstraintError):
    """A text has a character that marks need for themselves."""

    def __init__(self) -> None:
        super().__init__("a length can't be enforced where a text has a character above U+FFFFF")


def _char(char: str) -> str:
    return f"\\U{ord(char):08x}"
