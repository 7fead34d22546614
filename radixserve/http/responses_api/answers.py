"""The answers of the Responses API, for the OpenAPI document; the tests check what is written against them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from radixserve.http.responses import ChatToken  # noqa: TC001  (pydantic reads it)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class OutputText(_Answer):
    """Text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class MessageItem(_Answer):
    """What the model says."""

    type: Literal["message"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(_Answer):
    """Reasoning in the model's own words."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Answer):
    """What the model reasons before it speaks."""

    type: Literal["reasoning"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[Any]
    content: list[ReasoningText]


class CallItem(_Answer):
    """A call of a function; `arguments` is JSON text that matches its schema."""

    type: Literal["function_call"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class InputDetails(_Answer):
    """Where the input's tokens came from."""

    cached_tokens: int
    cache_write_tokens: int
    """Always 0: what is computed is cached, and costs nothing more."""


class OutputDetails(_Answer):
    """What the output's tokens were for."""

    reasoning_tokens: int
    """Always 0: they are not counted apart."""


class ResponseUsage(_Answer):
    """What the response cost."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFault(_Answer):
    """Why it failed."""

    code: str
    message: str


class Incomplete(_Answer):
    """Why it is cut."""

    reason: Literal["max_output_tokens"]


class ResponseObject(_Answer):
    """Answer of POST /v1/responses; most fields repeat the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFault | None
    incomplete_details: Incomplete | None
    output: list[MessageItem | ReasoningItem | CallItem]
    usage: ResponseUsage | None
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]


class DeletedResponse(_Answer):
    """Answer of DELETE /v1/responses/ID."""

    id: str
    object: Literal["response"]
    deleted: bool


class ResponseEvent(BaseModel):
    """An event of a streamed response: `type` says which further fields it has."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ResponseObject | None = None
    item: MessageItem | ReasoningItem | CallItem | None = None
    part: OutputText | ReasoningText | None = None
