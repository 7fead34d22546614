"""POST /v1/responses, GET and DELETE /v1/responses/ID."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import APIRouter, Request, Response

from radixserve.http.accounts import tenant_of
from radixserve.http.answer import opening, run
from radixserve.http.auth import api_key
from radixserve.http.body import read_json
from radixserve.http.chat import check_chat_model
from radixserve.http.errors import ApiError, BadRequestError
from radixserve.http.extension import find_extension
from radixserve.http.openapi import KEY, describes
from radixserve.http.program import ProgramSpec, Segment
from radixserve.http.responses import ErrorAnswer
from radixserve.http.responses_api.answers import DeletedResponse, ResponseObject
from radixserve.http.responses_api.items import parse_input
from radixserve.http.responses_api.output import new_id
from radixserve.http.responses_api.request import ResponsesRequest
from radixserve.http.responses_api.writer import ResponseWriter
from radixserve.http.schemas import parse_request
from radixserve.http.state import state_of
from radixserve.http.unsupported import refuse_unsupported

if TYPE_CHECKING:
    from radixserve.http.state import ServerState

router = APIRouter(prefix="/v1/responses", tags=["responses"])

_ERRORS: dict[int | str, dict[str, Any]] = {401: {"model": ErrorAnswer}, 404: {"model": ErrorAnswer}, 503: {"model": ErrorAnswer}}


@router.post(
    "",
    summary="Answer items",
    openapi_extra=describes("ResponsesRequest", "ResponseObject", "ResponseEvent"),
    response_class=Response,
)
async def create_response(http: Request) -> Response:
    """OpenAI's Responses API, for text and functions.

    `previous_response_id` goes on from an answer that is stored: for a day, within the limits of the store, by tenant. Unknown
    fields are ignored; a known one that can't be honoured is a 400.
    """
    state = state_of(http)
    body = await read_json(http, state.config)
    request = parse_request(ResponsesRequest, body, state.config)
    name = state.check_model(request.model)
    check_chat_model(state)
    refuse_unsupported(body, api="responses")
    request.options()
    wants_store = request.store is not False
    tenant = await tenant_of(state, api_key(http)) if wants_store or request.previous_response_id is not None else ""
    conversation = (*_before(state, tenant, request.previous_response_id), *parse_input(request.input, state.config))
    if len(conversation) > state.config.max_messages:
        raise BadRequestError(
            f"The conversation has {len(conversation)} messages; at most {state.config.max_messages} are taken.",
            param="input",
            code="array_above_max_length",
        )
    spec = _spec(request, body, conversation, state)

    def keep(response: dict[str, Any], turn: Segment) -> None:
        if wants_store:
            state.responses.put(tenant, response, (*conversation, turn))

    writer = ResponseWriter(_head(request, name), logprobs=request.wants_logprobs, keep=keep)
    extension = find_extension(http.headers, request.radixserve)
    return await run(http, state, [spec], opening(http, request), writer, extension=extension, stream=bool(request.stream))


@router.get(
    "/{response_id}",
    summary="A stored response",
    response_model=ResponseObject,
    responses=_ERRORS,
    openapi_extra={"security": KEY},
)
async def get_response(request: Request, response_id: str) -> Response:
    """What was answered; 404 when it was not stored, by another tenant, or too long ago."""
    state = state_of(request)
    stored = state.responses.get(await tenant_of(state, api_key(request)), response_id)
    if stored is None:
        raise _not_found(response_id)
    return Response(orjson.dumps(stored.response), media_type="application/json")


@router.delete(
    "/{response_id}",
    summary="Forget a response",
    response_model=DeletedResponse,
    responses=_ERRORS,
    openapi_extra={"security": KEY},
)
async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
    """Take it out of the store."""
    state = state_of(request)
    if not state.responses.delete(await tenant_of(state, api_key(request)), response_id):
        raise _not_found(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def _not_found(response_id: str) -> ApiError:
    return ApiError(f"There is no response {response_id[:100]!r}.", status=404, code="response_not_found", param="response_id")


def _before(state: ServerState, tenant: str, previous: str | None) -> tuple[Segment, ...]:
    if previous is None:
        return ()
    stored = state.responses.get(tenant, previous)
    if stored is None:
        raise BadRequestError(
            f"The previous response {previous[:100]!r} is not stored (any more). Send the whole conversation as 'input'.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return stored.conversation


def _spec(request: ResponsesRequest, body: dict[str, Any], conversation: tuple[Segment, ...], state: ServerState) -> ProgramSpec:
    tools = request.asked_tools(state.config)
    asked = request.asked_format(body)
    first = (Segment(role="system", text=request.instructions),) if request.instructions else ()
    logprobs = (request.top_logprobs or 0) if request.wants_logprobs else -1
    must_call = tools.use is not None and tools.use.mode == "required"
    return ProgramSpec(
        segments=(*first, *conversation),
        sampling=request.sampling(state.card, logprobs=logprobs),
        constraint=None if must_call else asked.constraint,
        tools=tools.specs,
        tool_use=tools.use,
        parse_reasoning=True,
        stream=bool(request.stream),
        request_fields={"constraint": asked.field, "prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"},
    )


def _head(request: ResponsesRequest, name: str) -> dict[str, Any]:
    """The fields that OpenAI repeats of a request."""
    form = (request.text or {}).get("format") or {"type": "text"}
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.checked_metadata(),
        "model": name,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": request.service_tier if request.service_tier in ("flex", "priority") else "default",
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": form},
        "tool_choice": request.tool_choice or "auto",
        "tools": [_tool(tool) for tool in request.tools or []],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": True, **tool}
