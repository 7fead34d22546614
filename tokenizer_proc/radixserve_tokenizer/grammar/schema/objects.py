"""Keywords of objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.schema import values as sets
from radixserve_tokenizer.grammar.schema.scalars import checked_pattern
from radixserve_tokenizer.grammar.schema.texts import Texts
from radixserve_tokenizer.grammar.schema.values import ANYTHING, NOTHING, Cover, Object, Values
from radixserve_tokenizer.grammar.values import count, strings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_tokenizer.grammar.schema.denote import Meaning
    from radixserve_tokenizer.grammar.schema.documents import SchemaNode
    from radixserve_tokenizer.grammar.schema.values import Names

_SAY_MORE = ("additionalProperties", "unevaluatedProperties")


def object_keyword(meaning: Meaning, node: SchemaNode, name: str, holds: bool) -> Values:
    """The values that fulfil a keyword, or don't. Raises `ConstraintError`."""
    match name:
        case "minProperties" | "maxProperties":
            return _sized(count(node.schema[name], name, node.pointer), name, holds)
        case "properties":
            return _properties(meaning, node, holds)
        case "required":
            return _required(meaning, node, holds)
        case "patternProperties":
            return _patterned(meaning, node, holds)
        case "additionalProperties":
            names, patterns = own_names(node)
            goal = meaning.document.goal(node, name, holds=holds)
            return covered(names, patterns, goal, holds)
        case "propertyNames":
            found = meaning.values(meaning.document.goal(node, name, holds=holds)).strings
            if holds:
                return _objects([Object(names=frozenset({found}))], True)
            return _objects([Object(witnesses=frozenset({(found, ANYTHING)}), low=1)] if found else [], False)
        case "dependentRequired":
            return _dependent(meaning, node, name, holds)
        case "dependentSchemas":
            return _dependent(meaning, node, name, holds)
        case _:
            return _dependent(meaning, node, "dependencies", holds)


def own_names(node: SchemaNode) -> tuple[frozenset[str], frozenset[str]]:
    """Property names and patterns that a schema speaks of itself. Raises `ConstraintError`."""
    return frozenset(_mapping(node, "properties")), frozenset(
        checked_pattern(pattern, "patternProperties", node.pointer) for pattern in _mapping(node, "patternProperties")
    )


def covered(names: frozenset[str], patterns: frozenset[str], goal: sets.Goal, holds: bool) -> Values:
    """Objects all of whose other properties fulfil a goal; `holds` False: that have another one that does."""
    if holds:
        return _objects([Object(covers=frozenset({Cover(names, patterns, goal)}))], True)
    outside = Texts(patterns=frozenset((pattern, False) for pattern in patterns), excluded=names)
    return _objects([Object(witnesses=frozenset({((outside,), goal)}), low=1)], False)


def _mapping(node: SchemaNode, keyword: str) -> dict[str, Any]:
    found = node.schema.get(keyword, {})
    if not isinstance(found, dict):
        raise ConstraintError(f"'{keyword}' must be an object", node.pointer)
    return found


def _sized(limit: int, name: str, holds: bool) -> Values:
    if (name == "minProperties") == holds:
        return _objects([Object(low=limit if holds else limit + 1)], holds)
    return _objects([Object(high=limit)] if holds else [Object(high=limit - 1)] if limit else [], holds)


def _is_declared(meaning: Meaning, node: SchemaNode) -> bool:
    return meaning.closed and not any(keyword in node.schema for keyword in _SAY_MORE)


def _properties(meaning: Meaning, node: SchemaNode, holds: bool) -> Values:
    goals = [(name, meaning.document.goal(node, "properties", name, holds=holds)) for name in _mapping(node, "properties")]
    if holds:
        return _objects([Object(tuple(goals), is_declared=_is_declared(meaning, node))], True)
    return _objects([Object(((name, goal),), (name,)) for name, goal in goals if goal != NOTHING], False)


def _required(meaning: Meaning, node: SchemaNode, holds: bool) -> Values:
    names = strings(node.schema["required"], "required", node.pointer)
    if holds:
        return _objects([Object(required=tuple(names), is_declared=bool(names) and _is_declared(meaning, node))], True)
    return _objects([_without(name) for name in names], False)


def _patterned(meaning: Meaning, node: SchemaNode, holds: bool) -> Values:
    own_names(node)
    listed = [
        (pattern, meaning.document.goal(node, "patternProperties", pattern, holds=holds))
        for pattern in _mapping(node, "patternProperties")
    ]
    if holds:
        return _objects([Object(patterns=frozenset(listed), is_declared=_is_declared(meaning, node))], True)
    found: list[Object] = []
    for pattern, goal in listed:
        if goal != NOTHING:
            named: Names = (Texts(patterns=frozenset({(pattern, True)})),)
            found.append(Object(witnesses=frozenset({(named, goal)}), low=1))
    return _objects(found, False)


def _dependent(meaning: Meaning, node: SchemaNode, keyword: str, holds: bool) -> Values:
    """What follows from having a property: others (a list of names), or a schema."""
    found = sets.ALL if holds else sets.EMPTY
    for name, consequence in _mapping(node, keyword).items():
        having = Values(objects=(Object(required=(name,)),))
        if isinstance(consequence, list):
            names = strings(consequence, keyword, node.pointer)
            follows = _objects([Object(required=tuple(names))] if holds else [_without(other) for other in names], False)
        else:
            follows = meaning.values(meaning.document.goal(node, keyword, name, holds=holds))
        both = having.meet(follows)
        found = found.meet(without_property(name).join(both)) if holds else found.join(both)
    return found


def without_property(name: str) -> Values:
    """Everything but objects that have this property."""
    return _objects([_without(name)], True)


def _without(name: str) -> Object:
    return Object(((name, NOTHING),))


def _objects(shapes: Iterable[Object], holds: bool) -> Values:
    """The keyword says nothing about what is no object, so there it holds."""
    found = Values(objects=tuple(shapes))
    return sets.others("object", found) if holds else found
