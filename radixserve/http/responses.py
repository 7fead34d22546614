"""The answers, for the OpenAPI document. The routes build plain objects; the tests check them against these models."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

ChatFinish: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ModelObject(_Answer):
    """A served name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(_Answer):
    """All served names."""

    object: Literal["list"]
    data: list[ModelObject]


class ErrorDetail(_Answer):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(_Answer):
    """Every error has this form."""

    error: ErrorDetail


class PromptTokensDetails(_Answer):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class UsageAnswer(_Answer):
    """What the request cost: each prompt once, every choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatTop(_Answer):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(ChatTop):
    """A token of the answer, with the best alternatives."""

    top_logprobs: list[ChatTop]


class ChatLogprobs(_Answer):
    """One entry for each token."""

    content: list[ChatToken]
    refusal: None


class ChatFunction(_Answer):
    """What is called."""

    name: str
    arguments: str
    """JSON text that matches the function's schema."""


class ChatCall(_Answer):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: ChatFunction


class ChatMessage(_Answer):
    """The answer's message."""

    role: Literal["assistant"]
    content: str | None
    """Null beside calls without text."""
    refusal: None
    reasoning_content: str | None = None
    """What the model reasoned, where it does so between marks of its own."""
    tool_calls: list[ChatCall] | None = None
    function_call: ChatFunction | None = None
    """The call, for a request with `functions`."""


class ChatChoice(_Answer):
    """One choice. `stop_reason` and `matched_stop` (one thing, by vLLM's and SGLang's name) are the stop string or token that ended it."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
    stop_reason: str | int | None
    matched_stop: str | int | None


class ChatAnswer(_Answer):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None
    choices: list[ChatChoice]
    usage: UsageAnswer


class ChatFunctionDelta(_Answer):
    """A piece of a function's call: its name comes first, then its arguments in pieces."""

    name: str | None = None
    arguments: str | None = None


class ChatCallDelta(_Answer):
    """A piece of the call `index`: the first has `id`, `type` and the name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: ChatFunctionDelta


class ChatDelta(_Answer):
    """What a chunk adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatCallDelta] | None = None
    function_call: ChatFunctionDelta | None = None


class ChatChunkChoice(_Answer):
    """A choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None


class ChatChunk(_Answer):
    """One event of a streamed chat answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None
    choices: list[ChatChunkChoice]
    usage: UsageAnswer | None = None


class TextLogprobs(_Answer):
    """Parallel lists, one entry for each token; the first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(_Answer):
    """One choice of a completions answer or chunk. `prompt_token_ids` comes with the log-probabilities of an echoed prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None
    prompt_token_ids: list[int] = []


class TextAnswer(_Answer):
    """Answer of POST /v1/completions; each event of a stream has the same form, `usage` only in the last when asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None
    choices: list[TextChoice]
    usage: UsageAnswer | None = None


class Tokens(_Answer):
    """Answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(_Answer):
    """Answer of POST /detokenize."""

    prompt: str


def components() -> dict[str, Any]:
    """JSON Schemas of the answers that routes return unvalidated, by name, for the OpenAPI document."""
    from pydantic.json_schema import models_json_schema

    from radixserve.http.messages_api.answers import MessageError, MessageEvent, MessageObject, TokenCount
    from radixserve.http.responses_api.answers import ResponseEvent, ResponseObject

    models = (
        *(ChatAnswer, ChatChunk, TextAnswer, ErrorAnswer, Tokens, DetokenizedText),
        *(ResponseObject, ResponseEvent),
        *(MessageObject, MessageEvent, MessageError, TokenCount),
    )
    _, schema = models_json_schema([(model, "serialization") for model in models], ref_template="#/components/schemas/{model}")
    found: dict[str, Any] = schema["$defs"]
    return found
