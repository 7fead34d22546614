"""Tools as agents have them, made up: nested objects, enums, unions, optional fields, formats, patterns, references.

Each is made from its number alone. The words are ordinary ones, so that a small language model has something to say.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve_tokenizer.protocol import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Callable

_NOUNS = [
    "order",
    "customer",
    "invoice",
    "ticket",
    "booking",
    "flight",
    "hotel",
    "room",
    "message",
    "event",
    "meeting",
    "file",
    "folder",
    "report",
    "city",
    "country",
    "product",
    "price",
    "payment",
    "refund",
    "account",
    "user",
    "group",
    "team",
    "project",
    "task",
    "comment",
    "review",
    "playlist",
    "song",
    "movie",
    "recipe",
    "sensor",
    "device",
]
_VERBS = [
    "create",
    "update",
    "delete",
    "find",
    "list",
    "search",
    "send",
    "schedule",
    "cancel",
    "book",
    "convert",
    "translate",
    "summarise",
    "check",
    "set",
    "get",
]
_FIELDS = {
    "name": "A name",
    "title": "A short title",
    "description": "What it is about",
    "query": "What to look for",
    "city": "A city",
    "language": "A language",
    "reason": "Why",
    "note": "A remark",
}
_FORMATS = ("date", "date-time", "email", "uuid", "ipv4", "uri", "time")
_PATTERNS = (
    r"^[A-Z]{2}-\d{4}$",
    r"^\+?[0-9]{7,12}$",
    r"^#[0-9a-f]{6}$",
    r"^v\d+\.\d+(\.\d+)?$",
    r"[a-z]+_[a-z]+",
    r"^(low|high)-\d$",
)
_ENUMS = (
    ["low", "medium", "high"],
    ["open", "closed", "pending"],
    ["celsius", "fahrenheit"],
    ["asc", "desc"],
    ["EUR", "USD", "GBP", "JPY"],
    [1, 2, 3],
)
_KINDS = ("nested objects", "enums", "unions", "optional fields", "formats", "patterns", "references", "lists", "numbers")


class Sample(NamedTuple):
    """One tool with something to ask for it."""

    tool: ToolSpec
    schema: dict[str, Any]
    kinds: tuple[str, ...]
    request: str


def sample(number: int) -> Sample:
    """The tool with this number."""
    maker = _Maker(random.Random(f"tool {number}"))
    schema = maker.parameters(number)
    verb, noun = _VERBS[number % len(_VERBS)], _NOUNS[number % len(_NOUNS)]
    tool = ToolSpec(name=f"{verb}_{noun}", description=f"{verb.capitalize()} a {noun}.", parameters=json.dumps(schema))
    asked = "; ".join(
        f"{name}: {_said(node, schema, name)}" for name, node in schema["properties"].items() if name in schema["required"]
    )
    return Sample(tool, schema, tuple(sorted(maker.kinds)), f"Please {verb} a {noun}. {asked}.")


_VALUES = {
    "name": "Anna",
    "title": "Monday plan",
    "description": "A short one",
    "query": "blue shoes",
    "city": "Oslo",
    "language": "French",
    "reason": "it is late",
    "note": "call me",
    "date": "2025-03-14",
    "date-time": "2025-03-14T09:30:00Z",
    "time": "09:30:00Z",
    "email": "anna@example.com",
    "uuid": "6f1c2a34-9b7d-4e21-8c55-0d3f6a7b8c9d",
    "ipv4": "10.0.0.7",
    "uri": "https://example.com/a",
    _PATTERNS[0]: "AB-1234",
    _PATTERNS[1]: "+4712345678",
    _PATTERNS[2]: "#00ff7f",
    _PATTERNS[3]: "v1.2",
    _PATTERNS[4]: "blue_shoes",
    _PATTERNS[5]: "low-1",
}


def _said(node: dict[str, Any], root: dict[str, Any], name: str = "") -> str:
    """What a user would say for a value: requests name the values that they are about."""
    if "$ref" in node:
        return _said(root["$defs"][node["$ref"].rpartition("/")[2]], root)
    for options in ("anyOf", "oneOf"):
        if options in node:
            # A reference that may be left out leads back to where it stands: nobody says that.
            return _said(next(option for option in node[options] if "$ref" not in option), root)
    if "enum" in node or "const" in node:
        return str(node.get("const", node.get("enum", [""])[0]))
    kind = node["type"] if isinstance(node["type"], str) else node["type"][0]
    if kind == "object":
        return ", ".join(f"{key} {_said(value, root, key)}" for key, value in node["properties"].items())
    if kind == "array":
        return f"{_said(node['items'], root)}"
    if kind == "string":
        return _VALUES.get(node.get("format", node.get("pattern", name)), "Oslo")
    return {"boolean": "yes", "integer": "7", "number": "2.5", "null": "none"}[kind]


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._definitions: dict[str, Any] = {}
        self.kinds: set[str] = set()

    def parameters(self, number: int) -> dict[str, Any]:
        """A whole schema. Every kind comes up in turn."""
        first = self._of_kind(_KINDS[number % len(_KINDS)], 0)
        schema = self._object(0, first)
        if self._definitions:
            schema["$defs"] = self._definitions
        if self._rng.random() < 0.5:
            schema["additionalProperties"] = False
        return schema

    def _object(self, depth: int, first: Any = None) -> dict[str, Any]:
        names = self._rng.sample(list(_FIELDS), self._rng.randint(1, 4 - depth))
        properties: dict[str, Any] = {name: self._value(name, depth) for name in names}
        if first is not None:
            properties[self._rng.choice(_NOUNS)] = first
        required = [name for name in properties if self._rng.random() < 0.7] or list(properties)[:1]
        if len(required) < len(properties):
            self.kinds.add("optional fields")
        return {"type": "object", "properties": properties, "required": required}

    def _value(self, name: str, depth: int) -> dict[str, Any]:
        if self._rng.random() < 0.45:
            return {"type": "string", "description": _FIELDS[name]}
        kinds = [kind for kind in _KINDS if depth < 2 or kind not in ("nested objects", "references", "unions", "lists")]
        return self._of_kind(self._rng.choice(kinds), depth + 1)

    def _of_kind(self, kind: str, depth: int) -> dict[str, Any]:
        self.kinds.add(kind)
        makers: dict[str, Callable[[int], dict[str, Any]]] = {
            "nested objects": lambda depth: self._object(min(depth + 1, 3)),
            "enums": lambda _: self._enum(),
            "unions": self._union,
            "optional fields": lambda _: {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "formats": lambda _: {"type": "string", "format": self._rng.choice(_FORMATS)},
            "patterns": lambda _: {"type": "string", "pattern": self._rng.choice(_PATTERNS)},
            "references": self._reference,
            "lists": self._list,
            "numbers": lambda _: self._number(),
        }
        return makers[kind](depth)

    def _enum(self) -> dict[str, Any]:
        values = self._rng.choice(_ENUMS)
        return {"type": "string" if isinstance(values[0], str) else "integer", "enum": values}

    def _union(self, depth: int) -> dict[str, Any]:
        choice = self._rng.randrange(3)
        if choice == 0:
            return {"type": self._rng.choice([["string", "null"], ["integer", "string"], ["number", "null"]])}
        if choice == 1:
            return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 20}, {"type": "boolean"}]}
        members = [
            {"type": "object", "properties": {"type": {"const": word}, word: {"type": "string"}}, "required": ["type", word]}
            for word in self._rng.sample(_NOUNS, 2)
        ]
        return {"oneOf": members}

    def _reference(self, depth: int) -> dict[str, Any]:
        name = self._rng.choice(["Address", "Person", "Range"])
        if name not in self._definitions:
            self._definitions[name] = {"type": "null"}
            self._definitions[name] = self._object(min(depth + 1, 3))
        elif self._definitions[name] == {"type": "null"}:  # inside itself it may be left out
            return {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}
        return {"$ref": f"#/$defs/{name}"}

    def _list(self, depth: int) -> dict[str, Any]:
        items = self._rng.choice([{"type": "string"}, {"type": "integer"}, self._enum()])
        bounds = self._rng.choice([{"minItems": 1, "maxItems": 4}, {"maxItems": 5}, {}])
        return {"type": "array", "items": items, **bounds}

    def _number(self) -> dict[str, Any]:
        return self._rng.choice(
            [
                {"type": "integer", "minimum": 1, "maximum": 100},
                {"type": "number", "minimum": 0},
                {"type": "number"},
                {"type": "integer"},
                {"type": "boolean"},
            ]
        )
