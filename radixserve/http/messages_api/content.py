"""Anthropic's messages, whose content is a text or a list of blocks, as messages of the chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve.http.body import json_depth
from radixserve.http.errors import BadRequestError
from radixserve.http.fields import show
from radixserve.http.program import Segment
from radixserve.http.responses_api.items import assistant_turn
from radixserve.http.tools import as_list, as_object, as_string

if TYPE_CHECKING:
    from radixserve.http.config import HttpConfig

_ROLES = ("user", "assistant", "system")


def parse_conversation(system: Any, messages: Any, config: HttpConfig) -> tuple[Segment, ...]:
    """The conversation; where the last message is the assistant's, the answer goes on from it. Raises `BadRequestError`."""
    items = as_list(messages, "messages", config.max_messages)
    if not items:
        raise BadRequestError("'messages' must not be empty.", param="messages", code="empty_array")
    text = _texts(system, "system", config)
    segments = [Segment(role="system", text=text)] if text else []
    for i, one in enumerate(items):
        segments += _message(as_object(one, f"messages[{i}]"), f"messages[{i}]", config)
    if segments and segments[-1].role == "assistant":
        last = segments.pop()
        if last.fields:
            raise BadRequestError(
                "The last message of the assistant may have text alone, from which the answer goes on: "
                "send the results of its calls, too.",
                param=f"messages[{len(items) - 1}]",
                code="invalid_value",
            )
        if last.text:
            segments.append(Segment(text=last.text))
    return tuple(segments)


def _message(message: dict[str, Any], path: str, config: HttpConfig) -> list[Segment]:
    role = message.get("role")
    if role not in _ROLES:
        raise BadRequestError(
            f"'{path}.role' must be one of {', '.join(_ROLES)}, not {show(role)}.", param=f"{path}.role", code="invalid_value"
        )
    content = message.get("content")
    if isinstance(content, str):
        return [Segment(role=role, text=content)]
    if content is None:
        raise BadRequestError(f"'{path}.content' is required.", param=f"{path}.content", code="missing_required_parameter")
    blocks = [
        (as_object(one, f"{path}.content[{i}]"), f"{path}.content[{i}]")
        for i, one in enumerate(as_list(content, f"{path}.content", config.max_messages))
    ]
    if role == "assistant":
        return [_assistant(blocks, config)]
    return _user(role, blocks, config)


def _user(role: str, blocks: list[tuple[dict[str, Any], str]], config: HttpConfig) -> list[Segment]:
    """Results of tools are messages of their own; text between them stays where it is."""
    segments: list[Segment] = []
    texts: list[str] = []
    for block, path in blocks:
        if block.get("type") == "tool_result" and role == "user":
            if texts:
                segments.append(Segment(role=role, text="".join(texts)))
                texts = []
            fields = {"tool_call_id": as_string(block.get("tool_use_id"), f"{path}.tool_use_id")}
            segments.append(Segment(role="tool", text=_texts(block.get("content"), f"{path}.content", config), fields=fields))
        else:
            texts.append(_text(block, path))
    if texts or not segments:
        segments.append(Segment(role=role, text="".join(texts)))
    return segments


def _assistant(blocks: list[tuple[dict[str, Any], str]], config: HttpConfig) -> Segment:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, path in blocks:
        match block.get("type"):
            case "thinking":
                reasoning.append(as_string(block.get("thinking"), f"{path}.thinking"))
            case "redacted_thinking":
                pass  # nothing of it can be read
            case "tool_use":
                calls.append(_call(block, path, config))
            case _:
                texts.append(_text(block, path))
    return assistant_turn("".join(texts), "".join(reasoning), calls)


def _call(block: dict[str, Any], path: str, config: HttpConfig) -> dict[str, Any]:
    given = {} if block.get("input") is None else as_object(block["input"], f"{path}.input")
    if json_depth(given, config.max_json_depth) > config.max_json_depth:
        raise BadRequestError(
            f"'{path}.input' nests deeper than {config.max_json_depth} levels.", param=f"{path}.input", code="invalid_value"
        )
    name = as_string(block.get("name"), f"{path}.name")
    return {"id": as_string(block.get("id"), f"{path}.id"), "type": "function", "function": {"name": name, "arguments": given}}


def _texts(value: Any, path: str, config: HttpConfig) -> str:
    """A text, or blocks of text joined in order; nothing is the empty text."""
    if value is None or isinstance(value, str):
        return value or ""
    blocks = as_list(value, path, config.max_messages)
    return "".join(_text(as_object(one, f"{path}[{i}]"), f"{path}[{i}]") for i, one in enumerate(blocks))


def _text(block: dict[str, Any], path: str) -> str:
    if block.get("type") != "text":
        raise BadRequestError(
            f"'{path}' is a block of type {show(block.get('type'))}, which can't be read here; this model reads text.",
            param=path,
            code="unsupported_content_part",
        )
    return as_string(block.get("text"), f"{path}.text")
