"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from radixserve.http.answer import ending, head, respond
from radixserve.http.body import read_json
from radixserve.http.constraints import find_constraint
from radixserve.http.errors import BadRequestError
from radixserve.http.logprobs import chat_logprobs
from radixserve.http.messages import continue_last, parse_messages
from radixserve.http.openapi import describes
from radixserve.http.program import ProgramSpec
from radixserve.http.schemas import ChatRequest, parse_request
from radixserve.http.state import state_of
from radixserve.http.unsupported import refuse_tool_calls, refuse_unsupported
from radixserve.http.usage import UsageTally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.http.state import ServerState
    from radixserve_tokenizer.protocol import Delta, Done, ModelCard, TokenLogprob

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    openapi_extra=describes("ChatRequest", "ChatAnswer", "ChatChunk"),
    response_class=Response,
)
async def chat_completions(http: Request) -> Response:
    """OpenAI's chat API.

    Messages of all roles, with text as a string or a list of parts; calls and results of tools may be among them. `tools` are
    not supported yet, but with `tool_choice` none. Unknown fields are ignored; a known one that can't be honoured is a 400.
    """
    state = state_of(http)
    body = await read_json(http, state.config)
    card = state.card
    request = parse_request(ChatRequest, body, state.config)
    name = state.check_model(request.model)
    spec = build_spec(request, body, state)
    return await respond(http, state, request, [spec], ChatWriter(request, name, card))


def build_spec(request: ChatRequest, body: dict[str, Any], state: ServerState) -> ProgramSpec:
    """The program of a chat request; raises `BadRequestError`."""
    if not state.card.has_chat_template:
        raise BadRequestError("This model has no chat template; use /v1/completions.", code="unsupported_endpoint")
    refuse_unsupported(body, chat=True)
    refuse_tool_calls(request.tools, request.tool_choice, state.config.max_tools)
    asked = find_constraint(body)
    names = {"constraint": asked.field, "prompt": "messages"}
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    segments = parse_messages(request.messages, state.config)
    if request.continue_final_message:
        segments = continue_last(segments)
    return ProgramSpec(
        segments=segments,
        sampling=request.sampling(state.card, logprobs=request.wanted_logprobs()),
        constraint=asked.constraint,
        n=request.n or 1,
        stream=bool(request.stream),
        request_fields=names,
    )


class _ChoiceState:
    """How much of a choice its client has."""

    __slots__ = ("num_chars", "num_logprobs", "opened")

    def __init__(self) -> None:
        self.opened = False
        self.num_chars = 0
        self.num_logprobs = 0


class ChatWriter:
    """Writes chat answers, whole and in chunks."""

    def __init__(self, request: ChatRequest, name: str, card: ModelCard) -> None:
        self._want_usage = bool(request.options().include_usage)
        self._logprobs = bool(request.logprobs)
        self._head = head("chatcmpl", "chat.completion.chunk" if request.stream else "chat.completion", request, name, card)
        self._usage = UsageTally(n=request.n or 1)
        self._states: dict[int, _ChoiceState] = {}

    def whole(self, choices: Sequence[Done]) -> dict[str, Any]:
        """The answer that isn't streamed."""
        written: list[dict[str, Any]] = []
        for index, done in enumerate(choices):
            self._usage.add(index, done.usage)
            message = {"role": "assistant", "content": done.value, "refusal": None}
            written.append({"index": index, "message": message, "logprobs": self._logprobs_of(done.logprobs), **ending(done)})
        return {**self._head, "choices": written, "usage": self._usage.body()}

    def delta(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """A chunk for new text; none while the text is withheld."""
        return self._text(choice, delta.text, delta.logprobs)

    def done(self, choice: int, done: Done) -> list[dict[str, Any]]:
        """The rest of the text, then the chunk with the finish reason."""
        self._usage.add(choice, done.usage)
        sent = self._states.setdefault(choice, _ChoiceState())
        chunks = self._text(choice, done.value[sent.num_chars :], done.logprobs[sent.num_logprobs :])
        return [*chunks, self._chunk({"index": choice, "delta": {}, "logprobs": None, **ending(done)})]

    def end(self) -> list[dict[str, Any]]:
        """The chunk with the usage, if it was asked for."""
        return [{**self._head, "choices": [], "usage": self._usage.body()}] if self._want_usage else []

    def _text(self, choice: int, text: str, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        sent = self._states.setdefault(choice, _ChoiceState())
        chunks: list[dict[str, Any]] = []
        if not sent.opened:
            sent.opened = True
            chunks.append(self._chunk(_piece(choice, {"role": "assistant", "content": ""})))
        if text or (self._logprobs and logprobs):
            sent.num_chars += len(text)
            sent.num_logprobs += len(logprobs)
            chunks.append(self._chunk({**_piece(choice, {"content": text}), "logprobs": self._logprobs_of(logprobs)}))
        return chunks

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "choices": [choice]}
        if self._want_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs_of(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries) if self._logprobs else None


def _piece(choice: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
