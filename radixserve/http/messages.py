"""Chat messages as clients send them, checked and brought into the one form that the wire has: a role, text, and fields.

Content may be a string, a list of text parts (joined in order), null, or missing. What beside text a template may use (name,
tool_calls, tool_call_id, reasoning_content) travels in the fields. The older `function_call` and role `function` become a call and
its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from radixserve.http.body import json_depth
from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.program import Segment

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig

#: A developer message is what newer models call a system message.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def parse_messages(value: Any, config: HttpConfig) -> tuple[Segment, ...]:
    """The conversation; raises `BadRequestError` naming the message and part that is wrong."""
    if not isinstance(value, list):
        raise BadRequestError(f"'messages' must be a list of messages, not {show(value)}.", param="messages", code="invalid_type")
    messages = value
    if not messages:
        raise BadRequestError("'messages' must not be empty.", param="messages", code="empty_array")
    if len(messages) > config.max_messages:
        raise BadRequestError(
            f"'messages' may have at most {config.max_messages} messages, not {len(messages)}.",
            param="messages",
            code="array_above_max_length",
        )
    return tuple(_message(one, f"messages[{i}]", config) for i, one in enumerate(messages))


def continue_last(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """vLLM's `continue_final_message`: the answer goes on from the last assistant message, which stays open."""
    last = segments[-1]
    if last.role != "assistant" or "tool_calls" in last.fields:
        raise BadRequestError(
            "'continue_final_message' needs a last message of the assistant with text alone.",
            param="continue_final_message",
            code="invalid_value",
        )
    return (*segments[:-1], Segment(text=last.text)) if last.text else segments[:-1]


def _message(value: Any, path: str, config: HttpConfig) -> Segment:
    if not isinstance(value, dict):
        raise BadRequestError(f"'{path}' must be an object, not {show(value)}.", param=path, code="invalid_type")
    message = cast("dict[str, Any]", value)
    given = message.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise BadRequestError(
            f"'{path}.role' must be one of {', '.join(_ROLES)}, not {show(given)}.", param=f"{path}.role", code="invalid_value"
        )
    text = _content(message.get("content"), f"{path}.content")
    fields: dict[str, Any] = {}
    name = message.get("name")
    if name is not None:
        fields["name"] = _string(name, f"{path}.name")
    if role == "assistant":
        text = text or _string(message.get("refusal") or "", f"{path}.refusal")
        fields |= _assistant_fields(message, path, config)
    elif given == "function":
        fields["tool_call_id"] = _older_id(fields.get("name", ""))
    elif role == "tool" and message.get("tool_call_id") is not None:
        fields["tool_call_id"] = _string(message["tool_call_id"], f"{path}.tool_call_id")
    return Segment(role=role, text=text, fields=fields)


def _content(value: Any, path: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadRequestError(
            f"'{path}' must be a string or a list of parts, not {show(value)}.", param=path, code="invalid_type"
        )
    return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(value))


def _part(value: Any, path: str) -> str:
    if not isinstance(value, dict):
        raise BadRequestError(f"'{path}' must be an object, not {show(value)}.", param=path, code="invalid_type")
    part = cast("dict[str, Any]", value)
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return _string(part.get(kind), f"{path}.{kind}")
    raise BadRequestError(
        f"'{path}' is a part of type {show(kind)}; this model reads text only (parts of type 'text').",
        param=path,
        code="unsupported_content_part",
    )


def _assistant_fields(message: dict[str, Any], path: str, config: HttpConfig) -> dict[str, Any]:
    if message.get("audio") is not None:
        raise BadRequestError(
            f"'{path}.audio' is not supported: the model reads text only.", param=f"{path}.audio", code="unsupported_parameter"
        )
    fields: dict[str, Any] = {}
    for name in ("reasoning_content", "reasoning"):  # two names of one thing
        if isinstance(message.get(name), str) and message[name]:
            fields["reasoning_content"] = message[name]
            break
    calls = message.get("tool_calls")
    older = message.get("function_call")
    if older is not None:
        if calls:
            raise BadRequestError(
                f"'{path}' has 'tool_calls' and 'function_call', which is their older form; send one.",
                param=f"{path}.function_call",
                code="invalid_value",
            )
        called = called_function(older, f"{path}.function_call", config)
        return {**fields, "tool_calls": [{"id": _older_id(called["name"]), "type": "function", "function": called}]}
    if calls is None or calls == []:
        return fields
    if not isinstance(calls, list):
        raise BadRequestError(
            f"'{path}.tool_calls' must be a list, not {show(calls)}.", param=f"{path}.tool_calls", code="invalid_type"
        )
    checked = [_call(call, f"{path}.tool_calls[{i}]", config) for i, call in enumerate(calls)]
    return {**fields, "tool_calls": checked}


def _call(value: Any, path: str, config: HttpConfig) -> dict[str, Any]:
    call = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not isinstance(call.get("function"), dict) or call.get("type", "function") != "function":
        raise BadRequestError(f"'{path}' must be a call of type 'function'.", param=path, code="invalid_value")
    return {
        "id": _string(call.get("id") or "", f"{path}.id"),
        "type": "function",
        "function": called_function(call["function"], f"{path}.function", config),
    }


def called_function(value: Any, path: str, config: HttpConfig) -> dict[str, Any]:
    """What was called: `name` and `arguments` of an object. `arguments` goes on as it came: the template's side knows whether it wants text or an object."""
    described = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    name = _string(described.get("name"), f"{path}.name")
    arguments = described.get("arguments")
    if arguments is None:
        arguments = "{}"
    if not isinstance(arguments, (str, dict)):
        raise BadRequestError(f"'{path}.arguments' must be JSON text.", param=f"{path}.arguments", code="invalid_type")
    if json_depth(arguments, config.max_json_depth) > config.max_json_depth:
        raise BadRequestError(
            f"'{path}.arguments' nests deeper than {config.max_json_depth} levels.",
            param=f"{path}.arguments",
            code="invalid_value",
        )
    return {"name": name, "arguments": arguments}


def _older_id(name: str) -> str:
    """Calls of the older form have no ids; a call and its result meet by the function's name."""
    return f"call_{name}"


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f"'{path}' must be a string, not {show(value)}.", param=path, code="invalid_type")
    return value
