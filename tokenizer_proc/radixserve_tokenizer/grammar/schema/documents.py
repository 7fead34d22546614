"""The schemas of one document, numbered, and where their references lead."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import referencing
import referencing.exceptions
import referencing.jsonschema

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.schema.errors import TooComplexError, unenforceable

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.values import Goal

MAX_NODES = 20_000
_BESIDE_REFERENCE = frozenset(
    {"$ref", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}
)


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """One schema, with the place that a message names."""

    schema: Any
    pointer: str
    resolver: Any
    """What relative references in it are relative to."""

    def child(self, *keys: str | int) -> tuple[Any, str]:
        """The schema under these keys, and its pointer."""
        schema, pointer = self.schema, self.pointer
        for key in keys:
            schema, pointer = schema[key], f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
        return schema, pointer


def _id(schema: Any) -> str:
    found = schema.get("$id", "") if isinstance(schema, dict) else ""
    if not isinstance(found, str):
        raise ConstraintError("'$id' must be a string", "")
    return found


class Document:
    """Numbers the schemas that are looked at. Two references to one schema give one number."""

    def __init__(self, schema: Any) -> None:
        self._nodes: list[SchemaNode] = []
        self._numbers: dict[tuple[int, str], int] = {}
        specification = referencing.jsonschema.DRAFT202012
        resource = specification.create_resource(schema)
        base = _id(schema)
        registry = referencing.Registry().with_resource(base, resource)
        # In a malformed schema it stumbles; what is wrong there is said when the place is reached.
        with suppress(AttributeError, TypeError, ValueError, KeyError):
            registry = registry.crawl()
        self._specification = specification
        self.root = self._number(schema, "", registry.resolver(base_uri=base))

    def node(self, number: int) -> SchemaNode:
        """By its number."""
        return self._nodes[number]

    def goal(self, parent: SchemaNode, *keys: str | int, holds: bool = True) -> Goal:
        """That the schema under these keys holds, or doesn't."""
        schema, pointer = parent.child(*keys)
        if schema is True or schema == {}:
            return frozenset() if holds else frozenset({(-1, True)})
        if schema is False:
            return frozenset({(-1, True)}) if holds else frozenset()
        return frozenset({(self._meant(self._number(schema, pointer, self._inside(parent.resolver, schema))), holds)})

    def _meant(self, number: int) -> int:
        """The schema that one which is nothing but references comes down to. One that leads to itself is left to whoever works it out."""
        seen = {number}
        while isinstance(schema := self.node(number).schema, dict) and "$ref" in schema and not schema.keys() - _BESIDE_REFERENCE:
            number = self.target(self.node(number))
            if number in seen:
                break
            seen.add(number)
        return number

    def made(self, origin: SchemaNode, schema: Any) -> int:
        """A schema that stands in no document, for what `origin` says in another way. The caller keeps it from being made again and again."""
        return self._number(schema, origin.pointer, origin.resolver, is_new=True)

    def target(self, node: SchemaNode) -> int:
        """The schema that the node's `$ref` names; raises `ConstraintError`."""
        reference = node.schema["$ref"]
        if not isinstance(reference, str):
            raise ConstraintError("'$ref' must be a string", node.pointer)
        try:
            found = node.resolver.lookup(reference)
        except (referencing.exceptions.Unresolvable, ValueError, TypeError, AttributeError) as error:
            raise unenforceable("$ref", f"for {reference!r}: it leads to nothing in this schema", node.pointer) from error
        pointer = reference[1:] if reference.startswith("#/") or reference == "#" else node.pointer
        return self._number(found.contents, pointer, found.resolver)

    def _inside(self, resolver: Any, schema: Any) -> Any:
        if isinstance(schema, dict) and isinstance(schema.get("$id"), str):
            return resolver.in_subresource(self._specification.create_resource(schema))
        return resolver

    def _number(self, schema: Any, pointer: str, resolver: Any, *, is_new: bool = False) -> int:
        if not isinstance(schema, dict | bool):
            raise ConstraintError("a schema must be an object, true or false", pointer)
        # The same object under two pointers is one schema: the document is a tree.
        key = (id(schema), "") if isinstance(schema, dict) else (0, str(schema))
        number = self._numbers.get(key)
        if number is None or is_new:
            if len(self._nodes) >= MAX_NODES:
                raise TooComplexError(f"more than {MAX_NODES} parts")
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append(SchemaNode(schema, pointer, resolver))
        return number
