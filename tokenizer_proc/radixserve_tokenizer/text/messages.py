"""OpenAI's messages: what counts as content, and tool calls as templates want them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.text.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A role is printed between control tokens, so it is one of these and never free text.
ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_TEXT_PARTS = ("text", "input_text", "output_text")


def content_of(message: Mapping[str, Any], where: str) -> list[str]:
    """The texts of a message's content, in order; missing and null content is empty. Raises `TemplateError` naming any other part."""
    content = message.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise TemplateError("content must be a string or a list of parts", f"{where}.content")
    return [_part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def fields_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message's further fields (name, tool_calls, tool_call_id, ...) that have a value."""
    return {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}


def check_message(role: str, fields: Mapping[str, Any], param: str) -> dict[str, Any]:
    """A message's further fields as a template will get them. Raises `TemplateError` for what no template takes."""
    if role not in ROLES:
        raise TemplateError(f"unknown role {role!r}: {', '.join(ROLES)} are possible", f"{param}.role")
    given = dict(fields)
    for name in ("role", "content"):
        if name in given:
            raise TemplateError(f"the field {name!r} cannot be given twice", f"{param}.{name}")
    if "tool_calls" in given:
        given["tool_calls"] = parse_tool_calls(given["tool_calls"], f"{param}.tool_calls")
    return given


def parse_tool_calls(calls: Any, param: str) -> Any:
    """Tool calls with `arguments` as an object where it is the JSON text of one. Clients echo the text; templates want the object."""
    if not isinstance(calls, list | tuple):
        raise TemplateError("tool_calls must be a list", param)
    return [_parse_call(call, f"{param}[{index}]") for index, call in enumerate(calls)]


def _parse_call(call: Any, param: str) -> Any:
    if not isinstance(call, dict):
        raise TemplateError("a tool call must be an object", param)
    if isinstance(call.get("function"), dict):
        return call | {"function": _with_object(call["function"])}
    return _with_object(call)


def _with_object(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return function
    return function | {"arguments": parsed} if isinstance(parsed, dict) else function


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    text = part.get("text") if isinstance(part, dict) else None
    if kind not in _TEXT_PARTS or not isinstance(text, str):
        raise TemplateError(f"a content part of type {kind!r} is not supported: this model reads text", where)
    return text
