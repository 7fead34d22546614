"""The values that keywords may have. Each function raises `ConstraintError` for others."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from radixserve_tokenizer.grammar.errors import ConstraintError

Schema: TypeAlias = dict[str, Any]

MAX_COUNT = 100_000
"""Largest minItems, maxLength and the like."""
EXACT_INTEGER = 1 << 53
"""Up to here a double holds every integer."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def bounds(name: str, own: Schema, pointer: str) -> Schema:
    """Numeric bounds of a node, whole ones for integers."""
    rewritten: Schema = {}
    for key, value in own.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= EXACT_INTEGER:
            raise ConstraintError(f"'{key}' must be a number within 2**53", pointer)
        if name == "integer" and isinstance(value, float):
            # The tightest whole number with the same meaning.
            value = {"minimum": math.ceil, "maximum": math.floor, "exclusiveMinimum": math.floor, "exclusiveMaximum": math.ceil}[
                key
            ](value)
        rewritten[key] = value
    return rewritten


def counts(own: Schema, low_key: str, high_key: str, pointer: str) -> tuple[int, int]:
    """Values of a pair of counts; 0 and -1 where they are absent."""
    for key in (low_key, high_key):
        value = own.get(key, 0)
        if isinstance(value, float) and value.is_integer():
            value = own[key] = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
            raise ConstraintError(f"'{key}' must be a whole number from 0 to {MAX_COUNT}", pointer)
    low, high = int(own.get(low_key, 0)), int(own.get(high_key, -1))
    if 0 <= high < low:
        raise ConstraintError(f"'{low_key}' is {low} and '{high_key}' is {high}: nothing is between", pointer)
    return low, high


def type_names(value: Any, pointer: str) -> list[str]:
    """The value of a `type` as a list of known names."""
    names = strings([value] if isinstance(value, str) else value, "type", pointer)
    for name in names:
        if name not in TYPES:
            raise ConstraintError(f"unknown type {name!r}", pointer)
    if not names:
        raise ConstraintError("'type' must not be empty", pointer)
    # Every integer is a number, too.
    return [name for name in names if not (name == "integer" and "number" in names)]


def strings(value: Any, name: str, pointer: str) -> list[str]:
    """A list of strings, each once."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConstraintError(f"'{name}' must be a list of strings", pointer)
    return list(dict.fromkeys(value))


def has_type(value: Any, name: str) -> bool:
    """Whether a value is of a JSON Schema type."""
    match name:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case _:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and (name == "number" or float(value).is_integer())


def check_numbers(value: Any, pointer: str) -> None:
    """The compiler writes numbers as doubles: larger integers would come out as others."""
    if isinstance(value, dict):
        for item in value.values():
            check_numbers(item, pointer)
    elif isinstance(value, list):
        for item in value:
            check_numbers(item, pointer)
    elif isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) <= EXACT_INTEGER:
        raise ConstraintError(f"the number {value} is beyond 2**53 and can't be enforced exactly", pointer)
