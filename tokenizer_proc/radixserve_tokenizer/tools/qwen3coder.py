"""Qwen3-Coder's format: <function=...> and <parameter=...> tags instead of one JSON object.

A parameter that is a plain string, or one of a list of strings, stands as it is between its tags. Any other value is JSON
there: also a string with a pattern, a format or a length, so that the schema can be enforced to the letter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.composite import Part, part_name
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.protocol import Constraint
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.format import CallGrammar, Use, to_json
from radixserve_tokenizer.tools.jsonformats import Hermes
from radixserve_tokenizer.tools.xmlparser import END_OF_VALUE, XmlParser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from radixserve_tokenizer.tools.parser import CallParser, OutputSink
    from radixserve_tokenizer.tools.toolset import Tool

_DEFINITIONS = ("$defs", "definitions")
_ANNOTATIONS = {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
_PLAIN = {"type", "enum", "const"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    schema: dict[str, Any]
    is_required: bool
    texts: tuple[str, ...] | None
    """Not None: it stands as it is; one of these texts, or any text where there are none."""


class Qwen3Coder(Hermes):
    """A function tag with one tag for each parameter, inside <tool_call>."""

    name = "qwen3_coder"

    def grammar(self, tools: Sequence[Tool], most: int) -> CallGrammar:
        """Parameters in the order in which the schema declares them."""
        parts: list[Part] = []
        rules = [f"any_value ::= TagDispatch(loop_after_dispatch=false, excludes=({literal_rule(END_OF_VALUE)}))"]
        options: list[str] = []
        for index, tool in enumerate(tools):
            whole: list[str] = []
            for parameter in parameters(tool):
                tag = literal_rule(f"<parameter={parameter.name}>\n")
                value = _value_rule(parameter, tool, parts)
                block = f"{tag} {value} {literal_rule(END_OF_VALUE + chr(10))}"
                whole.append(block if parameter.is_required else f"({block})?")
            rules.append(f"body{index} ::= {' '.join(whole) if whole else chr(34) * 2}")
            options.append(f"{literal_rule(f'<function={tool.name}>' + chr(10))} body{index}")
        newline = literal_rule("\n")
        call = f"{newline} one {literal_rule('</function>' + chr(10))} {self._close.rule}"
        more = f" ({newline} {self._open.rule} {call}){{0,{most - 1}}}" if most > 1 else ""
        return CallGrammar("\n".join([*rules, f"one ::= {' | '.join(options)}", f"calls ::= {call}{more}"]), tuple(parts))

    def parser(self, sink: OutputSink, tools: Sequence[Tool], use: Use) -> CallParser:
        """Writes the tags as a JSON object."""
        texts = {tool.name: frozenset(each.name for each in parameters(tool) if each.texts is not None) for tool in tools}
        return XmlParser(sink, self._open, self._close, texts, required=use == "required")

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Each tool on a line of its own."""
        lines = "\n".join(to_json(dict(tool)) for tool in tools)
        return (
            f"# Tools\n\nYou may call these functions:\n<tools>\n{lines}\n</tools>\n\n"
            "To call one, write it in this form, with every required parameter:\n"
            "<tool_call>\n<function=function_name>\n<parameter=parameter_name>\nvalue\n</parameter>\n</function>\n</tool_call>"
        )

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """One pair of tags a call."""
        return "\n".join(_call_text(name, arguments) for name, arguments in calls)


def parameters(tool: Tool) -> list[Parameter]:
    """The parameters that a tool's schema declares. Raises `ToolError` for a schema that can't be written so."""
    schema = tool.parameters
    extra = (
        schema.keys() - _ANNOTATIONS - {"type", "properties", "required", "additionalProperties", "$schema", "$id", *_DEFINITIONS}
    )
    if schema.get("type") != "object" or extra or not isinstance(schema.get("properties", {}), dict):
        named = f", without {sorted(extra)[0]!r}" if extra else ""
        raise _refused(tool, f"this model writes parameters one by one: the schema must be an object with properties{named}")
    properties: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(required, list) or any(name not in properties for name in required):
        raise _refused(tool, "every name in 'required' must be one of 'properties'", "/required")
    _check_references(schema, tool)
    return [_parameter(name, node, name in required, schema, tool) for name, node in properties.items()]


def _parameter(name: str, node: Any, is_required: bool, schema: dict[str, Any], tool: Tool) -> Parameter:
    pointer = f"/properties/{name.replace('~', '~0').replace('/', '~1')}"
    if not name or any(char in name for char in "<>\n\r"):
        raise _refused(tool, "a parameter's name must not have '<', '>' or line ends", pointer)
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    own = {**definitions, **node} if isinstance(node, dict) else {"anyOf": [node], **definitions}
    return Parameter(name, own, is_required, _texts(node, schema, 0))


def _texts(node: Any, root: dict[str, Any], depth: int) -> tuple[str, ...] | None:
    """The texts of a node that stands as it is: a list of them, () for any; None where it is to be JSON."""
    if not isinstance(node, dict) or depth > 16:
        return None
    keywords = node.keys() - _ANNOTATIONS
    if keywords == {"$ref"} and isinstance(node["$ref"], str):
        target: Any = root
        for key in node["$ref"].split("/")[1:]:
            target = target.get(key) if isinstance(target, dict) else None
        return _texts(target, root, depth + 1)
    if not keywords <= _PLAIN or node.get("type", "string") not in ("string", ["string"]):
        return None
    values = node.get("enum", [node["const"]] if "const" in node else None)
    if values is None:
        return () if "type" in node else None
    if not isinstance(values, list) or not values:
        return None
    texts = tuple(value for value in values if isinstance(value, str))
    fits = len(texts) == len(values) and not any(END_OF_VALUE in f"{text}{END_OF_VALUE}"[:-1] for text in texts)
    return texts if fits else None


def _value_rule(parameter: Parameter, tool: Tool, parts: list[Part]) -> str:
    if parameter.texts is not None:
        return f"({' | '.join(map(literal_rule, parameter.texts))})" if parameter.texts else "any_value"
    label = f"tool {tool.name!r}: parameter {parameter.name!r}"
    try:
        prepared = prepare(Constraint(kind="json_schema", source=json.dumps(parameter.schema, ensure_ascii=False)))
    except ConstraintError as error:
        raise ToolError(f"{label}: {error}", f"{tool.param}.parameters", "invalid_grammar") from error
    parts.append(Part(label, prepared, f"{tool.param}.parameters"))
    return part_name(len(parts) - 1)


def _check_references(schema: dict[str, Any], tool: Tool) -> None:
    """References to definitions alone: one to the whole schema would mean another schema inside a parameter's."""
    pending: list[Any] = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            reference = item.get("$ref")
            if isinstance(reference, str) and not reference.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS)):
                raise _refused(tool, f"keyword '$ref' can't be enforced for {reference!r} in this model's format of calls")
            pending.extend(item.values())


def _refused(tool: Tool, message: str, pointer: str = "the schema") -> ToolError:
    return ToolError(f"tool {tool.name!r}: {pointer}: {message}", f"{tool.param}.parameters", "invalid_grammar")


def _call_text(name: str, arguments: Any) -> str:
    items = arguments.items() if isinstance(arguments, dict) else [("arguments", arguments)]
    blocks = [f"<parameter={key}>\n{value if isinstance(value, str) else to_json(value)}{END_OF_VALUE}\n" for key, value in items]
    return f"<tool_call>\n<function={name}>\n{''.join(blocks)}</function>\n</tool_call>"
