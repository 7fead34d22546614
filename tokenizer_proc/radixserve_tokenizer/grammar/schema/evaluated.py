"""`unevaluatedProperties` and `unevaluatedItems`: what no other keyword of a schema has looked at.

What was looked at depends on which members of an anyOf and the like hold. So a schema is split into cases, in each of which that is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.schema import values as sets
from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.keywords import units
from radixserve_tokenizer.grammar.schema.objects import covered, own_names, without_property
from radixserve_tokenizer.grammar.schema.values import ALL, EMPTY, Array, Contains, Object, Values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve_tokenizer.grammar.schema.denote import Meaning
    from radixserve_tokenizer.grammar.schema.documents import SchemaNode
    from radixserve_tokenizer.grammar.schema.keywords import Units
    from radixserve_tokenizer.grammar.schema.values import Goal

MAX_CASES = 128


@dataclass(frozen=True, slots=True)
class Case:
    """Values for which a schema holds, and what it has looked at in them."""

    values: Values
    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    all_properties: bool = False
    num_items: int = 0
    all_items: bool = False
    contained: frozenset[tuple[int, bool]] = frozenset()
    """Schemas whose items were looked at by `contains`."""

    def meet(self, other: Case) -> Case:
        """Both hold."""
        return Case(
            self.values.meet(other.values),
            self.names | other.names,
            self.patterns | other.patterns,
            self.all_properties or other.all_properties,
            max(self.num_items, other.num_items),
            self.all_items or other.all_items,
            self.contained | other.contained,
        )


def with_unevaluated(meaning: Meaning, node: SchemaNode, parts: Units, holds: bool) -> Values:
    """The values for which a schema with such keywords holds, or doesn't. Raises `ConstraintError`."""
    cases = _own_cases(meaning, node, parts)
    found = EMPTY
    if holds:
        for case in cases:
            one = case.values
            for keyword in parts.unevaluated:
                one = one.meet(_unevaluated(meaning, node, keyword, case, True))
            found = found.join(one)
        return meaning.closing(node, parts, found)
    for name in parts.names:
        found = found.join(meaning.unit(node, name, False))
    for case in cases:
        for keyword in parts.unevaluated:
            found = found.join(case.values.meet(_unevaluated(meaning, node, keyword, case, False)))
    return found


def _unevaluated(meaning: Meaning, node: SchemaNode, keyword: str, case: Case, holds: bool) -> Values:
    goal = meaning.document.goal(node, keyword, holds=holds)
    if keyword == "unevaluatedProperties":
        if case.all_properties:
            return ALL if holds else EMPTY
        return covered(case.names, case.patterns, goal, holds)
    if case.all_items:
        return ALL if holds else EMPTY
    start = case.num_items
    if holds:
        # An item that a `contains` has found needs nothing more.
        either = goal if not case.contained else _either(meaning, node, goal, case.contained)
        return sets.others("array", Values(arrays=(Array(rests=frozenset({(start, either)})),)))
    neither = goal | frozenset((number, not held) for number, held in case.contained)
    return Values(arrays=(Array(low=start + 1, contains=(Contains(start, neither, 1, None),)),))


def _either(meaning: Meaning, node: SchemaNode, goal: Goal, contained: frozenset[tuple[int, bool]]) -> Goal:
    if not goal:
        return goal
    members = [meaning.document.node(number).schema for number, _ in sorted(contained)]
    schema = node.schema["unevaluatedItems"]
    return frozenset({(meaning.document.made(node, {"anyOf": [*members, schema]}), True)})


def _cases(meaning: Meaning, goal: Goal) -> list[Case]:
    """A goal of one schema, by cases."""
    found = [Case(ALL)]
    for number, holds in goal:
        if number < 0 or not holds:
            found = [replace(case, values=case.values.meet(meaning.literal(number, holds))) for case in found]
            continue
        node = meaning.document.node(number)
        parts = units(node)
        own = _own_cases(meaning, node, parts)
        if parts.unevaluated:
            own = [_looked_at_by(meaning, node, parts, case) for case in own]
        found = _all_of([found, own])
    return found


def _looked_at_by(meaning: Meaning, node: SchemaNode, parts: Units, case: Case) -> Case:
    found = case
    for keyword in parts.unevaluated:
        found = replace(found, values=found.values.meet(_unevaluated(meaning, node, keyword, case, True)))
        found = replace(found, all_properties=True) if keyword == "unevaluatedProperties" else replace(found, all_items=True)
    return found


def _own_cases(meaning: Meaning, node: SchemaNode, parts: Units) -> list[Case]:
    """A schema without its unevaluated... keywords."""
    found = [_looked_at(meaning, node)]
    for name in parts.names:
        if name in ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"):
            found = _all_of([found, *_applied(meaning, node, name)])
        else:
            unit = meaning.unit(node, name, True)
            found = [replace(case, values=case.values.meet(unit)) for case in found]
    return [case for case in found if not case.values.is_empty]


def _looked_at(meaning: Meaning, node: SchemaNode) -> Case:
    schema = node.schema
    names, patterns = own_names(node)
    contained = meaning.document.goal(node, "contains") if "contains" in schema else frozenset[tuple[int, bool]]()
    prefix = schema.get("prefixItems")
    return Case(
        ALL,
        names,
        patterns,
        all_properties="additionalProperties" in schema,
        num_items=len(prefix) if isinstance(prefix, list) else 0,
        all_items="items" in schema or ("contains" in schema and not contained),
        contained=contained,
    )


def _applied(meaning: Meaning, node: SchemaNode, name: str) -> list[list[Case]]:
    """Lists of cases; one of each list holds."""
    document = meaning.document
    match name:
        case "$ref":
            return [_cases(meaning, frozenset({(document.target(node), True)}))]
        case "allOf":
            return [_cases(meaning, member) for member in meaning.members(node, name)]
        case "anyOf" | "oneOf":
            held, failed = meaning.members(node, name), meaning.members(node, name, holds=False)
            if 2 ** len(held) > MAX_CASES and name == "anyOf":
                raise TooComplexError(f"'{name}' with {len(held)} members beside an 'unevaluated...' keyword", node.pointer)
            return [_which(meaning, held, failed, exactly_one=name == "oneOf")]
        case "if":
            return [_conditional(meaning, node)]
        case _:
            return [
                [Case(without_property(key)), *_all_of([[Case(_having(key))], _cases(meaning, document.goal(node, name, key))])]
                for key in node.schema[name]
            ]


def _which(meaning: Meaning, held: Sequence[Goal], failed: Sequence[Goal], *, exactly_one: bool) -> list[Case]:
    found: list[Case] = []
    for choice in product((True, False), repeat=len(held)):
        if sum(choice) == 0 or (exactly_one and sum(choice) != 1):
            continue
        members = [
            _cases(meaning, held[index]) if chosen else [Case(meaning.values(failed[index]))]
            for index, chosen in enumerate(choice)
        ]
        found += _all_of(members)
    return found


def _conditional(meaning: Meaning, node: SchemaNode) -> list[Case]:
    document, schema = meaning.document, node.schema
    fulfilled = _cases(meaning, document.goal(node, "if"))
    if "then" in schema:
        fulfilled = _all_of([fulfilled, _cases(meaning, document.goal(node, "then"))])
    failed = [Case(meaning.values(document.goal(node, "if", holds=False)))]
    if "else" in schema:
        failed = _all_of([failed, _cases(meaning, document.goal(node, "else"))])
    return fulfilled + failed


def _having(name: str) -> Values:
    return Values(objects=(Object(required=(name,)),))


def _all_of(lists: Iterable[list[Case]]) -> list[Case]:
    """One of each list holds: every combination that has values."""
    found = [Case(ALL)]
    for members in lists:
        found = [one for left in found for right in members if not (one := left.meet(right)).values.is_empty]
        if len(found) > MAX_CASES:
            raise TooComplexError(f"more than {MAX_CASES} cases of what is evaluated")
    return found
