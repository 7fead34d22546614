"""Keywords of numbers and strings."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.formats import ANNOTATION_FORMATS, FORMAT_PATTERNS, NUMBER_FORMATS
from radixserve_tokenizer.grammar.regex import RegexError
from radixserve_tokenizer.grammar.schema import values as sets
from radixserve_tokenizer.grammar.schema.numerals import Numbers, exact, numeral
from radixserve_tokenizer.grammar.schema.texts import Texts, pattern_node
from radixserve_tokenizer.grammar.schema.values import ALL, EMPTY, Values
from radixserve_tokenizer.grammar.values import count

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.documents import SchemaNode

_NEGATION = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}


def scalar_keyword(node: SchemaNode, name: str, holds: bool) -> Values:
    """The values that fulfil a keyword, or don't. Raises `ConstraintError`."""
    if name in ("minLength", "maxLength"):
        limit = count(node.schema[name], name, node.pointer)
        if (name == "minLength") == holds:
            low = limit if holds else limit + 1
            return _strings(Texts(low=low), holds)
        return _strings(Texts(high=limit) if holds else Texts(high=limit - 1) if limit else None, holds)
    if name == "pattern":
        return _strings(Texts(patterns=frozenset({(_expression(node.schema[name], name, node.pointer), holds)})), holds)
    if name == "format":
        return _format(node, holds)
    if name == "multipleOf":
        divisor = _number(node.schema[name], name, node.pointer)
        if divisor <= 0:
            raise ConstraintError("'multipleOf' must be above 0", node.pointer)
        return _numbers(Numbers(multiples=frozenset({(divisor, holds)})), holds)
    return _bound(node, name, holds)


def _bound(node: SchemaNode, name: str, holds: bool) -> Values:
    value: Any = node.schema[name]
    if name.startswith("exclusive") and isinstance(value, bool):
        # As draft 4 has it: beside the bound that it is about.
        plain = name[len("exclusive") :].lower()
        if plain not in node.schema and value:
            raise ConstraintError(f"'{name}' is true, but there is no '{plain}'", node.pointer)
        if not value:
            return ALL if holds else EMPTY
        value = node.schema[plain]
    bound = _number(value, name, node.pointer)
    kind = name if holds else _NEGATION[name]
    inclusive = not kind.startswith("exclusive")
    numbers = Numbers(low=(bound, inclusive)) if kind.lower().endswith("minimum") else Numbers(high=(bound, inclusive))
    return _numbers(numbers, holds)


def _format(node: SchemaNode, holds: bool) -> Values:
    name = node.schema["format"]
    if not isinstance(name, str):
        raise ConstraintError("'format' must be a string", node.pointer)
    if name in ANNOTATION_FORMATS:
        return ALL if holds else EMPTY
    if name in NUMBER_FORMATS:
        low, high = NUMBER_FORMATS[name]
        inside = Numbers(low=(Fraction(low), True), high=(Fraction(high), True))
        if holds:
            return _numbers(inside, True)
        return Values(numbers=(replace(inside, low=None, high=(Fraction(low), False)), Numbers(low=(Fraction(high), False))))
    if name not in FORMAT_PATTERNS:
        known = ", ".join(sorted({*FORMAT_PATTERNS, *NUMBER_FORMATS}))
        raise ConstraintError(f"keyword 'format' can't be enforced for {name!r}; known: {known}", node.pointer)
    return _strings(Texts(patterns=frozenset({(FORMAT_PATTERNS[name], holds)})), holds)


def _expression(value: Any, name: str, pointer: str) -> str:
    if not isinstance(value, str):
        raise ConstraintError(f"'{name}' must be a string", pointer)
    return checked_pattern(value, name, pointer)


def checked_pattern(value: str, name: str, pointer: str) -> str:
    """A regular expression that can be enforced; raises `ConstraintError`."""
    try:
        pattern_node(value)
    except RegexError as error:
        raise ConstraintError(f"keyword '{name}' can't be enforced: {error}", pointer) from error
    return value


def _number(value: Any, name: str, pointer: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConstraintError(f"'{name}' must be a number", pointer)
    found = exact(value)
    numeral(abs(found))  # raises where it has too many digits
    return found


def _numbers(numbers: Numbers, holds: bool) -> Values:
    """The keyword says nothing about what is no number, so there it holds."""
    found = Values(numbers=(numbers,))
    return sets.others("number", found) if holds else found


def _strings(texts: Texts | None, holds: bool) -> Values:
    found = Values(strings=() if texts is None else (texts,))
    return sets.others("string", found) if holds else found
