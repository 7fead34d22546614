"""The answers of the Messages API, for the OpenAPI document; the tests check what is written against them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextBlock(_Answer):
    """Text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(_Answer):
    """Reasoning in the model's own words; it isn't signed."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlock(_Answer):
    """A call of a tool; `input` matches its schema."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(_Answer):
    """What the message cost: `input_tokens` are those of the prompt that were computed."""

    input_tokens: int
    cache_creation_input_tokens: int
    """Always 0: what is computed is cached, and costs nothing more."""
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(_Answer):
    """Answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(BaseModel):
    """An event of a streamed message: `type` says which further fields it has."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
    message: MessageObject | None = None
    index: int | None = None
    content_block: TextBlock | ThinkingBlock | ToolUseBlock | None = None
    usage: MessageUsage | None = None


class TokenCount(_Answer):
    """Answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageFault(_Answer):
    """What went wrong."""

    type: str
    message: str


class MessageError(_Answer):
    """Every error under /v1/messages has this form."""

    type: Literal["error"]
    error: MessageFault
