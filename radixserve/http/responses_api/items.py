"""The `input` of a response: text, or items, as messages of the chat template.

A turn of the assistant is one message of the template, but several items: reasoning, text, calls. Items that follow one another
are put together again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.messages import called_function
from radixserve.http.program import Segment
from radixserve.http.tools import as_list, as_object, as_string

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}


class _Said(NamedTuple):
    """One item as what it adds to the conversation. `role` "" is reasoning of the assistant's turn that follows."""

    role: str
    text: str = ""
    call: dict[str, Any] | None = None
    fields: dict[str, Any] | None = None


def parse_input(value: Any, config: HttpConfig) -> tuple[Segment, ...]:
    """The conversation; raises `BadRequestError` naming the item that is wrong."""
    if isinstance(value, str):
        return (Segment(role="user", text=value),)
    if value is None:
        raise BadRequestError("'input' is required.", param="input", code="missing_required_parameter")
    items = as_list(value, "input", config.max_messages)
    if not items:
        raise BadRequestError("'input' must not be empty.", param="input", code="empty_array")
    return _joined([_item(as_object(one, f"input[{i}]"), f"input[{i}]", config) for i, one in enumerate(items)])


def _item(item: dict[str, Any], path: str, config: HttpConfig) -> _Said:
    match item.get("type", "message" if "role" in item else None):
        case "message":
            role = _ROLES.get(item["role"]) if isinstance(item.get("role"), str) else None
            if role is None:
                raise BadRequestError(
                    f"'{path}.role' must be one of {', '.join(_ROLES)}, not {show(item.get('role'))}.",
                    param=f"{path}.role",
                    code="invalid_value",
                )
            return _Said(role, _text(item.get("content"), f"{path}.content", config))
        case "function_call":
            called = called_function(item, path, config)
            call = {"id": as_string(item.get("call_id"), f"{path}.call_id"), "type": "function", "function": called}
            return _Said("assistant", call=call)
        case "function_call_output":
            fields = {"tool_call_id": as_string(item.get("call_id"), f"{path}.call_id")}
            return _Said("tool", _text(item.get("output"), f"{path}.output", config), fields=fields)
        case "reasoning":
            content = item.get("content") or item.get("summary")
            return _Said("", _text(content, f"{path}.content", config))
        case kind:
            raise BadRequestError(
                f"'{path}' is an item of type {show(kind)}; this server knows 'message', 'function_call', "
                "'function_call_output' and 'reasoning'.",
                param=f"{path}.type",
                code="unsupported_parameter",
            )


def _text(value: Any, path: str, config: HttpConfig) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    texts: list[str] = []
    for i, one in enumerate(as_list(value, path, config.max_messages)):
        part = as_object(one, f"{path}[{i}]")
        kind = part.get("type")
        name = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if name is None:
            raise BadRequestError(
                f"'{path}[{i}]' is a part of type {show(kind)}; this model reads text only (parts of type 'input_text').",
                param=f"{path}[{i}]",
                code="unsupported_content_part",
            )
        texts.append(as_string(part.get(name), f"{path}[{i}].{name}"))
    return "".join(texts)


def _joined(items: list[_Said]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    reasoning = ""
    for said in items:
        if not said.role:
            reasoning += said.text
        elif said.call is not None:
            if not reasoning and segments and segments[-1].role == "assistant":
                before = segments.pop()
                calls = [*before.fields.get("tool_calls", ()), said.call]
                segments.append(Segment(role="assistant", text=before.text, fields={**before.fields, "tool_calls": calls}))
            else:
                segments.append(assistant_turn("", reasoning, [said.call]))
                reasoning = ""
        elif said.role == "assistant":
            segments.append(assistant_turn(said.text, reasoning, []))
            reasoning = ""
        else:
            reasoning = ""  # of a turn that said nothing
            segments.append(Segment(role=said.role, text=said.text, fields=said.fields or {}))
    return tuple(segments)


def assistant_turn(text: str, reasoning: str, calls: list[dict[str, Any]]) -> Segment:
    """A whole turn of the assistant. `calls` are in chat's form."""
    fields: dict[str, Any] = {}
    if reasoning:
        fields["reasoning_content"] = reasoning
    if calls:
        fields["tool_calls"] = calls
    return Segment(role="assistant", text=text, fields=fields)
