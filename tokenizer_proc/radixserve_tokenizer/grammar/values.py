"""The values that keywords may have. Each function raises `ConstraintError` for others."""

from __future__ import annotations

from typing import Any

from radixserve_tokenizer.grammar.errors import ConstraintError

MAX_COUNT = 100_000
"""Largest minItems, maxLength and the like."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def count(value: Any, key: str, pointer: str) -> int:
    """The value of a count."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise ConstraintError(f"'{key}' must be a whole number from 0 to {MAX_COUNT}", pointer)
    return value


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
