"""What schemas mean: the values for which one holds, and those for which it doesn't."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.schema import values as sets
from radixserve_tokenizer.grammar.schema.arrays import array_keyword
from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.evaluated import with_unevaluated
from radixserve_tokenizer.grammar.schema.keywords import (
    ARRAY_KEYWORDS,
    OBJECT_KEYWORDS,
    SCALAR_KEYWORDS,
    Units,
    implied_types,
    units,
)
from radixserve_tokenizer.grammar.schema.objects import object_keyword
from radixserve_tokenizer.grammar.schema.scalars import scalar_keyword
from radixserve_tokenizer.grammar.schema.values import ALL, ANYTHING, EMPTY, Values
from radixserve_tokenizer.grammar.values import has_type, type_names

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.documents import Document, SchemaNode
    from radixserve_tokenizer.grammar.schema.values import Goal

MAX_MEMBERS = 64
"""Of an anyOf and the like, where they have to be told apart."""


class Meaning:
    """Works schemas of one document out, each once.

    `closed`: where a schema lists properties (or first items) and says nothing of others there are none, and a schema without
    `type` means the types that its keywords speak of. What it allows is then less than the schema does, never more.
    """

    def __init__(self, document: Document, *, closed: bool) -> None:
        self.document = document
        self.closed = closed
        self.open_numbers = not closed
        """Whole numbers may be written with a point, too (1.0)."""
        self._goals: dict[Goal, Values] = {}
        self._literals: dict[tuple[int, bool], Values] = {}
        self._under_way: set[tuple[int, bool]] = set()
        self._as_it_says: Meaning | None = None
        self._exact: dict[int, tuple[int, Any]] = {}

    def values(self, goal: Goal) -> Values:
        """The values that fulfil a goal. Raises `ConstraintError`."""
        found = self._goals.get(goal)
        if found is None:
            found = ALL
            for number, holds in sorted(goal):
                found = found.meet(self.literal(number, holds))
            self._goals[goal] = found
        return found

    def literal(self, number: int, holds: bool) -> Values:
        """The values for which one schema holds, or doesn't."""
        if number < 0:
            return EMPTY if holds else ALL
        key = (number, holds)
        found = self._literals.get(key)
        if found is not None:
            return found
        node = self.document.node(number)
        if key in self._under_way:
            raise ConstraintError("keyword '$ref' leads from this schema back to itself without a value in between", node.pointer)
        self._under_way.add(key)
        try:
            found = self._work_out(node, holds)
        except RecursionError as error:
            raise TooComplexError("it is nested too deep", node.pointer) from error
        self._under_way.discard(key)
        self._literals[key] = found
        return found

    def _work_out(self, node: SchemaNode, holds: bool) -> Values:
        if isinstance(node.schema, bool):
            return ALL if node.schema == holds else EMPTY
        parts = units(node)
        if parts.unevaluated:
            return with_unevaluated(self, node, parts, holds)
        if not holds:
            found = EMPTY
            for name in parts.names:
                found = found.join(self.unit(node, name, False))
            return found
        found = ALL
        for name in parts.names:
            found = found.meet(self.unit(node, name, True))
        return self.closing(node, parts, found)

    def closing(self, node: SchemaNode, parts: Units, found: Values) -> Values:
        """With what a schema that holds implies where nothing else is said."""
        types = implied_types(parts) if self.closed else ()
        if types:
            kept = EMPTY
            for name in types:
                kept = kept.join(sets.only(name, found))
            found = kept
        if node.schema.get("nullable") is True:
            found = found.join(sets.of_type("null"))
        return found

    def unit(self, node: SchemaNode, name: str, holds: bool) -> Values:
        """The values that fulfil one keyword (with those that belong to it), or don't."""
        if name in SCALAR_KEYWORDS:
            return scalar_keyword(node, name, holds)
        if name in ARRAY_KEYWORDS:
            return array_keyword(self, node, name, holds)
        if name in OBJECT_KEYWORDS:
            return object_keyword(self, node, name, holds)
        applied: Values = getattr(self, f"_{name.lstrip('$')}")(node, holds)
        return applied

    # ---- values and types -------------------------------------------------------------------------------------------

    def _type(self, node: SchemaNode, holds: bool) -> Values:
        names = type_names(node.schema["type"], node.pointer)
        found = EMPTY
        for name in names:
            found = found.join(sets.INTEGERS if name == "integer" else sets.of_type(name))
        if holds:
            return found
        others = EMPTY
        for name in sets.TYPE_NAMES:
            if name == "number" and "integer" in names and "number" not in names:
                others = others.join(sets.FRACTIONS)
            elif name not in names:
                others = others.join(sets.of_type(name))
        return others

    def _const(self, node: SchemaNode, holds: bool) -> Values:
        return self._one_of(node, [node.schema["const"]], holds)

    def _enum(self, node: SchemaNode, holds: bool) -> Values:
        allowed = node.schema["enum"]
        if not isinstance(allowed, list) or not allowed:
            raise ConstraintError("'enum' must be a list that is not empty", node.pointer)
        return self._one_of(node, allowed, holds)

    def _one_of(self, node: SchemaNode, allowed: list[Any], holds: bool) -> Values:
        found = sets.of_scalars([value for value in allowed if not isinstance(value, list | dict)], holds=holds)
        for value in allowed:
            if isinstance(value, list | dict):
                one = self.literal(self._exactly(node, value), holds)
                found = found.join(one) if holds else found.meet(one)
        return found

    def _exactly(self, node: SchemaNode, value: Any) -> int:
        """The schema that holds for this array or object alone."""
        known = self._exact.get(id(value))
        if known is None:
            if has_type(value, "object"):
                properties = {name: {"const": member} for name, member in value.items()}
                schema: Any = {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
            else:
                members = [{"const": member} for member in value]
                schema = {"type": "array", "prefixItems": members, "minItems": len(value), "maxItems": len(value)}
                schema = schema if members else {"type": "array", "maxItems": 0}
            # The value is kept with it, so that its id stays its own.
            known = self._exact[id(value)] = (self.document.made(node, schema), value)
        return known[0]

    # ---- schemas of the same value ----------------------------------------------------------------------------------

    def _ref(self, node: SchemaNode, holds: bool) -> Values:
        return self.literal(self.document.target(node), holds)

    def _allOf(self, node: SchemaNode, holds: bool) -> Values:  # noqa: N802
        found = ALL if holds else EMPTY
        for member in self.members(node, "allOf", holds=holds):
            one = self.values(member)
            found = found.meet(one) if holds else found.join(one)
        return found

    def _anyOf(self, node: SchemaNode, holds: bool) -> Values:  # noqa: N802
        found = EMPTY if holds else ALL
        for member in self.members(node, "anyOf", holds=holds):
            one = self.values(member)
            found = found.join(one) if holds else found.meet(one)
        return found

    def _oneOf(self, node: SchemaNode, holds: bool) -> Values:  # noqa: N802
        members, negated = self.members(node, "oneOf"), self.members(node, "oneOf", holds=False)
        if not holds:
            return self._none_or_several(members, negated)
        alone = [self.values(member) for member in members]
        if not self._wide.overlap(members):
            found = EMPTY
            for one in alone:
                found = found.join(one)
            return found
        if len(members) > MAX_MEMBERS:
            raise TooComplexError("'oneOf' with so many members that overlap", node.pointer)
        found = EMPTY
        for index, one in enumerate(alone):
            for other, without in enumerate(negated):
                one = one if other == index else one.meet(self.values(without))
            found = found.join(one)
        return found

    def _none_or_several(self, members: list[Goal], negated: list[Goal]) -> Values:
        found = ALL
        for without in negated:
            found = found.meet(self.values(without))
        for index, member in enumerate(members):
            for other in members[index + 1 :]:
                found = found.join(self.values(member | other))
        return found

    @property
    def _wide(self) -> Meaning:
        """All that a schema allows: what the narrower reading leaves out of two schemas may still be of both."""
        if not self.closed:
            return self
        if self._as_it_says is None:
            self._as_it_says = Meaning(self.document, closed=False)
        return self._as_it_says

    def overlap(self, members: list[Goal]) -> bool:
        """Whether a value may fulfil two of these."""
        alone = [self.values(member) for member in members]
        return any(not self.is_void(one.meet(two)) for index, one in enumerate(alone) for two in alone[index + 1 :])

    def is_void(self, found: Values, visiting: frozenset[Goal] = frozenset()) -> bool:
        """Whether it is certain that there is no value: looks at required properties and items."""
        if found.null or found.booleans or found.numbers or found.strings:
            return False

        def void(goal: Goal) -> bool:
            return goal not in visiting and len(visiting) < 8 and self.is_void(self.values(goal), visiting | {goal})

        arrays = all(any(map(void, one.prefix[: one.low])) for one in found.arrays)
        return arrays and all(
            any(void(dict(one.properties).get(name, ANYTHING)) for name in one.required) for one in found.objects
        )

    def _not(self, node: SchemaNode, holds: bool) -> Values:
        return self.values(self.document.goal(node, "not", holds=not holds))

    def _if(self, node: SchemaNode, holds: bool) -> Values:
        found = EMPTY
        for keyword, fulfilled in (("then", True), ("else", False)):
            consequence = (
                self.document.goal(node, keyword, holds=holds) if keyword in node.schema else ANYTHING if holds else sets.NOTHING
            )
            found = found.join(self.values(self.document.goal(node, "if", holds=fulfilled) | consequence))
        return found

    def members(self, node: SchemaNode, keyword: str, *, holds: bool = True) -> list[Goal]:
        """Goals of a list of schemas."""
        listed = node.schema[keyword]
        if not isinstance(listed, list) or not listed:
            raise ConstraintError(f"'{keyword}' must be a list that is not empty", node.pointer)
        return [self.document.goal(node, keyword, index, holds=holds) for index in range(len(listed))]
