"""JSON Schemas, for the OpenAPI document, of fields that are checked by hand."""

from __future__ import annotations

from typing import Any

OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
STRING: dict[str, Any] = {"type": "string"}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    """Any of these."""
    return {"anyOf": list(schemas)}


def typed(kind: str, required: dict[str, Any], **optional: dict[str, Any]) -> dict[str, Any]:
    """An object whose `type` is `kind`."""
    properties = {"type": {"const": kind}, **required, **optional}
    return {"type": "object", "required": ["type", *required], "properties": properties}


TEXT_PART = typed("text", {"text": STRING})
CONTENT: dict[str, Any] = {
    "description": "Text, or text parts that are joined in order; null is the empty text.",
    **one_of(STRING, {"type": "null"}, {"type": "array", "items": TEXT_PART}),
}

_CALLED: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": STRING, "arguments": one_of(STRING, OBJECT)},
}
MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
        "content": CONTENT,
        "name": nullable(STRING),
        "tool_calls": nullable(
            {"type": "array", "items": {"type": "object", "required": ["function"], "properties": {"function": _CALLED}}}
        ),
        "function_call": nullable(_CALLED),
        "tool_call_id": nullable(STRING),
        "reasoning_content": nullable(STRING),
    },
}

_NAME: dict[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
FUNCTION: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _NAME,
        "description": nullable(STRING),
        "parameters": nullable(OBJECT),
        "strict": nullable({"type": "boolean"}),
    },
}
TOOLS = nullable({"type": "array", "items": {"type": "object", "required": ["function"], "properties": {"function": FUNCTION}}})
FUNCTIONS = nullable({"type": "array", "items": FUNCTION})

_NAMED: dict[str, Any] = {"type": "object", "required": ["name"], "properties": {"name": STRING}}
_MODES: dict[str, Any] = {"enum": ["auto", "none", "required"]}
_ALLOWED: dict[str, Any] = {
    "type": "object",
    "required": ["tools"],
    "properties": {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "minItems": 1, "items": OBJECT}},
}
TOOL_CHOICE = nullable(
    one_of(_MODES, typed("function", {"function": _NAMED}), typed("allowed_tools", {"allowed_tools": _ALLOWED}))
)
FUNCTION_CALL = nullable(one_of({"enum": ["auto", "none"]}, _NAMED))

_IDS: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
PROMPT: dict[str, Any] = {
    "description": "Text, token ids, or a list of either. None may be empty.",
    **one_of(_TEXT, {"type": "array", "minItems": 1, "items": _TEXT}, _IDS, {"type": "array", "minItems": 1, "items": _IDS}),
}
EXTENSION = nullable(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "program_id": nullable({"type": "string", "minLength": 1, "maxLength": 128}),
            "parent": nullable({"type": "string", "minLength": 1, "maxLength": 128}),
            "lease_s": nullable({"type": "number", "minimum": 0, "maximum": 3600}),
        },
    }
)
STOP = one_of(_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"})
