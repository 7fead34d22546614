"""Whether the members of a `oneOf` exclude each other, so that it is an `anyOf`."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.references import Definitions

_MAX_MEMBERS = 64


def disjoint(members: list[dict[str, Any]], definitions: Definitions, originals: list[Any]) -> bool:
    """True where no value can match two of the rewritten `members`; False where that isn't certain.

    `originals` are the members as the user wrote them: what a reference names is looked at there.
    """
    if len(members) > _MAX_MEMBERS:
        return False
    views = [_view(member, definitions, original) for member, original in zip(members, originals, strict=True)]
    return all(_exclude(first, second) for first, second in combinations(views, 2))


def _view(member: dict[str, Any], definitions: Definitions, original: Any) -> dict[str, Any]:
    """The member, or the definition that it refers to (as the user wrote it)."""
    reference = original.get("$ref") if isinstance(original, dict) else None
    target = definitions.target(reference) if isinstance(reference, str) else member
    return target if isinstance(target, dict) else {}


def _exclude(first: dict[str, Any], second: dict[str, Any]) -> bool:
    kinds, other_kinds = _kinds(first), _kinds(second)
    if kinds is not None and other_kinds is not None and not kinds & other_kinds:
        return True
    values, other_values = _values(first), _values(second)
    if values is not None and other_values is not None:
        return not values & other_values
    return kinds == other_kinds == {"object"} and _differ_in_a_property(first, second)


def _differ_in_a_property(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """A property that both require, with values that exclude each other."""
    for key in _required(first) & _required(second):
        one, other = _property(first, key), _property(second, key)
        if one is not None and other is not None and _exclude(one, other):
            return True
    return False


def _required(schema: dict[str, Any]) -> set[str]:
    names = schema.get("required")
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _property(schema: dict[str, Any], key: str) -> dict[str, Any] | None:
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, dict) else None
    return found if isinstance(found, dict) else None


def _values(schema: dict[str, Any]) -> set[str] | None:
    """The finite set of values, as JSON text."""
    if "const" in schema:
        return {_canonical(schema["const"])}
    values = schema.get("enum")
    return {_canonical(value) for value in values} if isinstance(values, list) else None


def _canonical(value: Any) -> str:
    # 1 and 1.0 are one value of JSON Schema.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _kinds(schema: dict[str, Any]) -> set[str] | None:
    """Types of the values; integers count as numbers. None: not certain."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {_kind(value) for value in values}
    types = schema.get("type")
    if isinstance(types, str):
        types = [types]
    return {"number" if name == "integer" else str(name) for name in types} if isinstance(types, list) else None


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
