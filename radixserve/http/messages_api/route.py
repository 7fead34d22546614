"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from fastapi import APIRouter, Depends, Request, Response

from radixserve.http.accounts import require_key
from radixserve.http.answer import opening, run
from radixserve.http.body import read_json
from radixserve.http.chat import check_chat_model
from radixserve.http.errors import BadRequestError
from radixserve.http.extension import find_extension
from radixserve.http.messages_api.content import parse_conversation
from radixserve.http.messages_api.request import MessagesRequest, check_thinking, without_tier
from radixserve.http.messages_api.writer import MessageWriter
from radixserve.http.openapi import describes
from radixserve.http.program import ProgramSpec
from radixserve.http.schemas import parse_request
from radixserve.http.state import state_of
from radixserve.http.tokens import count_tokens
from radixserve.http.unsupported import refuse_unsupported

if TYPE_CHECKING:
    from radixserve.http.state import ServerState

router = APIRouter(prefix="/v1/messages", tags=["messages"])


@router.post(
    "",
    summary="Answer a conversation in Anthropic's form",
    openapi_extra=describes("MessagesRequest", "MessageObject", "MessageEvent", error="MessageError"),
    response_class=Response,
)
async def messages(http: Request) -> Response:
    """Anthropic's Messages API, for text and tools. The key may be in `x-api-key`; errors have Anthropic's form.

    A last message of the assistant is gone on from. Unknown fields are ignored; a known one that can't be honoured is a 400.
    """
    state = state_of(http)
    request, body = await _read(http, state)
    name = state.check_model(request.model)
    if request.max_tokens is None:
        raise BadRequestError("'max_tokens' is required.", param="max_tokens", code="missing_required_parameter")
    spec = _spec(request, body, state)
    extension = find_extension(http.headers, request.radixserve)
    stream = bool(request.stream)
    return await run(http, state, [spec], opening(http, request), MessageWriter(name), extension=extension, stream=stream)


@router.post(
    "/count_tokens",
    summary="Count a conversation's tokens",
    openapi_extra=describes("MessagesRequest", "TokenCount", error="MessageError"),
    response_class=Response,
    dependencies=[Depends(require_key)],
)
async def count(http: Request) -> Response:
    """How many tokens the same request's prompt has, cached or not."""
    state = state_of(http)
    request, body = await _read(http, state)
    state.check_model(request.model)
    spec = _spec(request, body, state)
    return Response(orjson.dumps({"input_tokens": await count_tokens(state, spec)}), media_type="application/json")


async def _read(http: Request, state: ServerState) -> tuple[MessagesRequest, dict[str, Any]]:
    body = without_tier(await read_json(http, state.config))
    request = parse_request(MessagesRequest, body, state.config)
    check_chat_model(state)
    refuse_unsupported(body, api="messages")
    check_thinking(request.thinking)
    return request, body


def _spec(request: MessagesRequest, body: dict[str, Any], state: ServerState) -> ProgramSpec:
    tools = request.asked_tools(state.config)
    asked = request.asked_format(body)
    must_call = tools.use is not None and tools.use.mode == "required"
    sampling = request.sampling(state.card, logprobs=-1)
    return ProgramSpec(
        segments=parse_conversation(request.system, request.messages, state.config),
        sampling=msgspec.structs.replace(sampling, stop=request.stop_sequences),
        constraint=None if must_call else asked.constraint,
        tools=tools.specs,
        tool_use=tools.use,
        parse_reasoning=True,
        stream=bool(request.stream),
        request_fields={
            "constraint": asked.field,
            "prompt": "messages",
            "stop": "stop_sequences",
            "tools[].parameters": "tools[].input_schema",
        },
    )
