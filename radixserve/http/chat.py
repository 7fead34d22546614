"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from radixserve.http.answer import respond
from radixserve.http.body import read_json
from radixserve.http.chat_tools import chat_tools
from radixserve.http.chat_writer import ChatWriter
from radixserve.http.constraints import find_constraint
from radixserve.http.errors import BadRequestError
from radixserve.http.messages import continue_last, parse_messages
from radixserve.http.openapi import describes
from radixserve.http.program import ProgramSpec
from radixserve.http.schemas import ChatRequest, parse_request
from radixserve.http.state import state_of
from radixserve.http.unsupported import refuse_unsupported

if TYPE_CHECKING:
    from radixserve.http.state import ServerState

router = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    openapi_extra=describes("ChatRequest", "ChatAnswer", "ChatChunk"),
    response_class=Response,
)
async def chat_completions(http: Request) -> Response:
    """OpenAI's chat API.

    Messages of all roles, with text as a string or a list of parts; calls and results of tools may be among them. The model
    may call `tools`; the arguments of a call always match the tool's schema. Unknown fields are ignored; a known one that can't
    be honoured is a 400.
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
    check_chat_model(state)
    refuse_unsupported(body, api="chat")
    tools = chat_tools(request, state.config)
    asked = find_constraint(body)
    names = {"constraint": asked.field, "prompt": "messages"}
    if request.uses_functions:
        names |= {"tools": "functions", "tools[]": "functions[]", "tools[].parameters": "functions[].parameters"}
    else:
        names |= {"tools[].name": "tools[].function.name", "tools[].parameters": "tools[].function.parameters"}
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    segments = parse_messages(request.messages, state.config)
    if request.continue_final_message:
        segments = continue_last(segments)
    must_call = tools.use is not None and tools.use.mode == "required"
    return ProgramSpec(
        segments=segments,
        sampling=request.sampling(state.card, logprobs=request.wanted_logprobs()),
        # Where a call must be made there is no text that a format could be for.
        constraint=None if must_call else asked.constraint,
        tools=tools.specs,
        tool_use=tools.use,
        parse_reasoning=True,
        n=request.n or 1,
        stream=bool(request.stream),
        request_fields=names,
    )


def check_chat_model(state: ServerState) -> None:
    """Raise `BadRequestError` where the model has no chat template."""
    if not state.card.has_chat_template:
        raise BadRequestError("This model has no chat template; use /v1/completions.", code="unsupported_endpoint")
