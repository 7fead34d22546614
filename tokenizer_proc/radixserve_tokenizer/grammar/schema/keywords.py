"""Which keywords there are, which of them say something together, and which say nothing about the value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.schema.errors import unenforceable

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.documents import SchemaNode

#: Say nothing about the value, or nothing that JSON text could break. Extensions (x-...) are the same.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "markdownDescription"}
    | {"$schema", "$comment", "$id", "$anchor", "contentMediaType", "contentEncoding", "contentSchema", "discriminator"}
    | {"$defs", "definitions", "$vocabulary", "xml", "externalDocs"}
)
SCALAR_KEYWORDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"} | {"minLength", "maxLength", "pattern", "format"}
)
ARRAY_KEYWORDS = frozenset({"prefixItems", "items", "additionalItems", "minItems", "maxItems", "contains", "uniqueItems"})
OBJECT_KEYWORDS = frozenset(
    {"properties", "required", "patternProperties", "additionalProperties", "propertyNames", "minProperties", "maxProperties"}
    | {"dependentRequired", "dependentSchemas", "dependencies"}
)
APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if"})
_VALUES = frozenset({"type", "enum", "const"})
#: Belong to another keyword, or ask for nothing without it.
_SATELLITES = frozenset({"then", "else", "minContains", "maxContains", "nullable"})
UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
#: Values with which a keyword asks for nothing, or says what is so anyway.
_VACUOUS: dict[str, Any] = {"uniqueItems": False, "strict": True}

_TYPE_OF_KEYWORD = (
    dict.fromkeys(SCALAR_KEYWORDS - {"minLength", "maxLength", "pattern", "format"}, "number")
    | dict.fromkeys({"minLength", "maxLength", "pattern", "format"}, "string")
    | dict.fromkeys(ARRAY_KEYWORDS | {"unevaluatedItems"}, "array")
    | dict.fromkeys(OBJECT_KEYWORDS | {"unevaluatedProperties"}, "object")
)


@dataclass(frozen=True, slots=True)
class Units:
    """The keywords of one schema that say something."""

    names: tuple[str, ...]
    unevaluated: tuple[str, ...]


def units(node: SchemaNode) -> Units:
    """Raises `ConstraintError` for what isn't known."""
    names: list[str] = []
    unevaluated: list[str] = []
    for name, value in node.schema.items():
        if name in ANNOTATIONS or name.startswith("x-") or name in _SATELLITES or _is_vacuous(name, value):
            continue
        if name in UNEVALUATED:
            unevaluated.append(name)
        elif name in SCALAR_KEYWORDS | ARRAY_KEYWORDS | OBJECT_KEYWORDS | APPLICATORS | _VALUES:
            names.append(name)
        else:
            raise unenforceable(name, "", node.pointer)
    if not isinstance(node.schema.get("nullable", False), bool):
        raise ConstraintError("'nullable' must be true or false", node.pointer)
    return Units(tuple(names), tuple(unevaluated))


def _is_vacuous(name: str, value: Any) -> bool:
    return name in _VACUOUS and value is _VACUOUS[name]


def implied_types(parts: Units) -> tuple[str, ...]:
    """The types that a schema without `type` speaks of; none where it has other ways to say what it means."""
    names = set(parts.names)
    if names & (_VALUES | APPLICATORS):
        return ()
    return tuple(dict.fromkeys(_TYPE_OF_KEYWORD[name] for name in (*parts.names, *parts.unevaluated)))
