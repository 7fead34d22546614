"""The tools of a branch, checked: what the template is shown, and the grammar of each one's arguments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.prepare import Prepared, prepare
from radixserve_tokenizer.protocol import Constraint
from radixserve_tokenizer.tools.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_tokenizer.protocol import ToolSpec

MAX_TOOLS = 128
MAX_DEPTH = 100
"""Of one schema as JSON."""
MAX_TOOLS_BYTES = 512 << 10
"""Of all descriptions and schemas together."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """One tool. `parameters` is its schema as an object, with a type."""

    name: str
    description: str
    parameters: dict[str, Any]
    param: str
    """Its path in the request, for errors."""

    @property
    def definition(self) -> dict[str, Any]:
        """OpenAI's form, which templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @cached_property
    def prepared(self) -> Prepared:
        """The grammar of its arguments. Raises `ToolError` where it is seen at once that it can't be enforced; the compiler sees more."""
        try:
            prepared = prepare(Constraint(kind="json_schema", source=json.dumps(self.parameters, ensure_ascii=False)))
        except ConstraintError as error:
            raise ToolError(f"tool {self.name!r}: {error}", f"{self.param}.parameters", "invalid_grammar") from error
        if not _is_object(self.parameters, self.parameters, 0):
            text = f"the parameters of tool {self.name!r} must be the schema of an object"
            raise ToolError(text, f"{self.param}.parameters", "invalid_grammar")
        return prepared


class ToolSet:
    """Tools in their order, each name once."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)

    def __bool__(self) -> bool:
        return bool(self.tools)

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """All in OpenAI's form."""
        return [tool.definition for tool in self.tools]

    def pick(self, names: Sequence[str]) -> tuple[Tool, ...]:
        """Those with these names, all without any. Raises `ToolError` for a name that isn't there."""
        known = {tool.name: tool for tool in self.tools}
        for name in names:
            if name not in known:
                has = ", ".join(map(repr, known)) or "none"
                raise ToolError(f"there is no tool {name!r} to choose; the tools are: {has}", "tool_choice")
        return tuple(known[name] for name in dict.fromkeys(names)) if names else self.tools


NO_TOOLS = ToolSet(())


def read_tools(specs: Sequence[ToolSpec]) -> ToolSet:
    """The tools that a client sent. Raises `ToolError`; schemas are checked where they are to be enforced."""
    if len(specs) > MAX_TOOLS:
        raise ToolError(f"at most {MAX_TOOLS} tools are taken, not {len(specs)}")
    size = sum(len(spec.description) + len(spec.parameters) for spec in specs)
    if size > MAX_TOOLS_BYTES:
        raise ToolError(f"the tools' descriptions and schemas have {size} characters; at most {MAX_TOOLS_BYTES} are taken")
    tools: dict[str, Tool] = {}
    for index, spec in enumerate(specs):
        where = f"tools[{index}]"
        if _NAME.fullmatch(spec.name) is None:
            text = f"the tool name {spec.name[:80]!r} must have 1 to 128 letters, digits, '_', '-' and '.'"
            raise ToolError(text, f"{where}.name")
        if spec.name in tools:
            raise ToolError(f"two tools are called {spec.name!r}", f"{where}.name")
        tools[spec.name] = Tool(spec.name, spec.description, _parameters(spec, where), where)
    return ToolSet(tuple(tools.values()))


def _parameters(spec: ToolSpec, where: str) -> dict[str, Any]:
    if not spec.parameters.strip():
        return _NO_ARGUMENTS
    try:
        schema = json.loads(spec.parameters)
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the parameters of tool {spec.name!r} are not valid JSON: {error}", f"{where}.parameters") from error
    if not isinstance(schema, dict):
        raise ToolError(f"the parameters of tool {spec.name!r} must be a JSON Schema object", f"{where}.parameters")
    if _is_deeper(schema, MAX_DEPTH):
        raise ToolError(f"the parameters of tool {spec.name!r} are nested more than {MAX_DEPTH} deep", f"{where}.parameters")
    if not {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"} & schema.keys():
        schema = {"type": "object", **schema}
    return schema


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether JSON is nested deeper than that; without recursion, of which there might be too much."""
    level = [value]
    while level and depth >= 0:
        depth -= 1
        inside = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in inside for item in items]
    return bool(level)


def _is_object(node: Any, root: dict[str, Any], depth: int) -> bool:
    """Whether a schema that can be enforced allows nothing but objects."""
    if not isinstance(node, dict) or depth > 32:
        return False
    if "type" in node:
        return node["type"] in ("object", ["object"])
    if isinstance(node.get("$ref"), str):
        target: Any = root
        for key in node["$ref"].split("/")[1:]:
            target = target.get(key) if isinstance(target, dict) else None
        return _is_object(target, root, depth + 1)
    for name in ("anyOf", "oneOf"):
        if isinstance(node.get(name), list):
            return all(_is_object(member, root, depth + 1) for member in node[name])
    if isinstance(node.get("allOf"), list):
        return any(_is_object(member, root, depth + 1) for member in node["allOf"])
    values = node.get("enum", [node["const"]] if "const" in node else [])
    return bool(values) and all(isinstance(value, dict) for value in values)
