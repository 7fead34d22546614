"""Regular expressions as grammar rules (EBNF): as they are, or as they stand inside a JSON string.

The compiler takes regular expressions itself, but reads "\\x60b" as one escape and, inside JSON strings, lets
"(xd+)?z" match "dz" (0.2.9). Rules written from a tree of our own have neither trouble.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar import charset
from radixserve_tokenizer.grammar.charset import CharSet
from radixserve_tokenizer.grammar.regex import Anchor, Chars, Choice, Concat, Node, Repeat, alternatives, parse

if TYPE_CHECKING:
    from collections.abc import Callable

_MUST_BE_ESCAPED = CharSet.of([(0, 0x1F)]) | charset.chars('"\\')
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def output_rule(source: str) -> str:
    """The body of a rule for an expression that the whole output has to match; raises `RegexError`."""
    return " | ".join(write_expression(content, plain) for _, content, _ in alternatives(parse(source)))


def literal_rule(text: str) -> str:
    """The body of a rule for this text alone."""
    return f'"{"".join(_char(ord(char)) for char in text)}"'


def write_expression(node: Node, write_set: Callable[[CharSet], str]) -> str:
    """A tree as an EBNF expression, each character set as `write_set` has it. Choices come in parentheses."""
    match node:
        case Chars(found):
            return write_set(found)
        case Concat(parts):
            return " ".join(write_expression(part, write_set) for part in parts) if parts else '""'
        case Choice(options):
            return f"({' | '.join(write_expression(option, write_set) for option in options)})"
        case Repeat(inner, low, high):
            count = {(0, -1): "*", (1, -1): "+", (0, 1): "?"}.get((low, high)) or f"{{{low},{high if high >= 0 else ''}}}"
            body = write_expression(inner, write_set)
            # A class by itself is no rule of its own, which the compiler handles better.
            is_class = isinstance(inner, Chars) and body.startswith("[") and count in ("*", "+", "?")
            return f"{body}{count}" if is_class else f"({body}){count}"
        case Anchor():
            raise AssertionError("alternatives() leaves no anchor inside")


def plain(found: CharSet) -> str:
    """A class of these characters."""
    return "[" + "".join(_char(first) if first == last else f"{_char(first)}-{_char(last)}" for first, last in found.ranges) + "]"


def inside_json_string(found: CharSet) -> str:
    """One of these characters as it is written between the quotes of a JSON string."""
    raw = found.without(_MUST_BE_ESCAPED)
    options = [plain(raw)] if raw.ranges else []
    short = "".join(_SHORT_ESCAPES[char] for char in _SHORT_ESCAPES if char in found)
    if short:
        options.append('"\\\\" ' + plain(charset.chars(short)))
    if not options:
        # Control characters without a short escape, and nothing else: written by number.
        options = [f'"\\\\u{code:04x}"' for first, last in found.ranges for code in range(first, last + 1)]
    return options[0] if len(options) == 1 else f"({' | '.join(options)})"


def _char(code: int) -> str:
    """A code point inside a class or a literal: ASCII letters and digits as they are, the rest by number."""
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
