"""Keywords of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.schema import values as sets
from radixserve_tokenizer.grammar.schema.errors import unenforceable
from radixserve_tokenizer.grammar.schema.values import ALL, EMPTY, Array, Contains, Values
from radixserve_tokenizer.grammar.values import count

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.denote import Meaning
    from radixserve_tokenizer.grammar.schema.documents import SchemaNode
    from radixserve_tokenizer.grammar.schema.values import Goal


def array_keyword(meaning: Meaning, node: SchemaNode, name: str, holds: bool) -> Values:
    """The values that fulfil a keyword, or don't. Raises `ConstraintError`."""
    match name:
        case "minItems":
            limit = count(node.schema[name], name, node.pointer)
            return _arrays([Array(low=limit)] if holds else [Array(high=limit - 1)] if limit else [], holds)
        case "maxItems":
            limit = count(node.schema[name], name, node.pointer)
            return _arrays([Array(high=limit) if holds else Array(low=limit + 1)], holds)
        case "prefixItems":
            return _prefix(meaning, node, _listed(meaning, node, "prefixItems", holds), holds)
        case "items":
            if isinstance(node.schema["items"], list):  # as drafts 4 to 7 have it
                return _prefix(meaning, node, _listed(meaning, node, "items", holds), holds)
            return _rest(meaning, node, "items", _num_prefix(node), holds)
        case "additionalItems":
            listed = node.schema.get("items")
            if not isinstance(listed, list):
                return ALL if holds else EMPTY
            return _rest(meaning, node, name, len(listed), holds)
        case "contains":
            return _contains(meaning, node, holds)
        case _:
            return _distinct(node, holds)


def _num_prefix(node: SchemaNode) -> int:
    listed = node.schema.get("prefixItems", [])
    return len(listed) if isinstance(listed, list) else 0


def _listed(meaning: Meaning, node: SchemaNode, keyword: str, holds: bool) -> list[Goal]:
    if node.schema[keyword] == []:
        raise ConstraintError(f"'{keyword}' must be a list that is not empty", node.pointer)
    return meaning.members(node, keyword, holds=holds)


def _prefix(meaning: Meaning, node: SchemaNode, goals: list[Goal], holds: bool) -> Values:
    if not holds:
        free = sets.ANYTHING
        return _arrays([Array((*(free,) * index, goal), low=index + 1) for index, goal in enumerate(goals)], False)
    others = (
        ("additionalItems", "unevaluatedItems") if isinstance(node.schema.get("items"), list) else ("items", "unevaluatedItems")
    )
    declared = meaning.closed and not any(keyword in node.schema for keyword in others)
    return _arrays([Array(tuple(goals), is_declared=declared)], True)


def _rest(meaning: Meaning, node: SchemaNode, keyword: str, start: int, holds: bool) -> Values:
    goal = meaning.document.goal(node, keyword, holds=holds)
    if holds:
        return _arrays([Array(rests=frozenset({(start, goal)}))], True)
    return _arrays([Array(low=start + 1, contains=(Contains(start, goal, 1, None),))], False)


def _contains(meaning: Meaning, node: SchemaNode, holds: bool) -> Values:
    goal = meaning.document.goal(node, "contains")
    low = count(node.schema.get("minContains", 1), "minContains", node.pointer)
    high = count(node.schema["maxContains"], "maxContains", node.pointer) if "maxContains" in node.schema else None
    if holds:
        if not low and high is None:
            return ALL
        empty = high is not None and low > high
        return _arrays([] if empty else [Array(contains=(Contains(0, goal, low, high),))], True)
    found = [Array(contains=(Contains(0, goal, 0, low - 1),))] if low else []
    if high is not None:
        found.append(Array(contains=(Contains(0, goal, high + 1, None),)))
    return _arrays(found, False)


def _distinct(node: SchemaNode, holds: bool) -> Values:
    if not isinstance(node.schema["uniqueItems"], bool):
        raise ConstraintError("'uniqueItems' must be true or false", node.pointer)
    if not holds:
        raise unenforceable("uniqueItems", "inside a negation", node.pointer)
    return _arrays([Array(distinct=frozenset({node.pointer}))], True)


def _arrays(shapes: list[Array], holds: bool) -> Values:
    """The keyword says nothing about what is no array, so there it holds."""
    found = Values(arrays=tuple(shapes))
    return sets.others("array", found) if holds else found
