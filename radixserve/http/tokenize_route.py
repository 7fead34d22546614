"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from radixserve.http import body_schemas
from radixserve.http.accounts import require_key
from radixserve.http.body import read_json
from radixserve.http.body_schemas import nullable
from radixserve.http.chat import check_chat_model
from radixserve.http.chat_tools import read_chat_tools
from radixserve.http.errors import BadRequestError
from radixserve.http.messages import continue_last, parse_messages
from radixserve.http.openapi import describes
from radixserve.http.prompts import parse_token_ids
from radixserve.http.schemas import parse_request
from radixserve.http.state import state_of
from radixserve.http.tokens import chat_tokens, token_strings

if TYPE_CHECKING:
    from radixserve.http.state import ServerState

router = APIRouter(tags=["tokens"], dependencies=[Depends(require_key)])


class TokenizeRequest(BaseModel):
    """Body of POST /tokenize: a `prompt`, or `messages`."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Of a prompt: begin with the token that texts begin with, where the model has one (default true)."""
    messages: Annotated[Any, WithJsonSchema(nullable({"type": "array", "minItems": 1, "items": body_schemas.MESSAGE}))] = None
    tools: Annotated[Any, WithJsonSchema(body_schemas.TOOLS)] = None
    add_generation_prompt: bool | None = None
    """Of messages: end with the beginning of the answer (default true)."""
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    model: str | None = None
    tokens: Annotated[Any, WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})]


@router.post("/tokenize", summary="Text to tokens", openapi_extra=describes("TokenizeRequest", "Tokens"), response_class=Response)
async def tokenize(http: Request) -> Response:
    """The token ids of a text or of a conversation, as a request with the same would have them."""
    state = state_of(http)
    body = await read_json(http, state.config)
    card = state.card
    request = parse_request(TokenizeRequest, body, state.config)
    state.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise BadRequestError("Send either 'prompt' or 'messages'.", param="prompt", code="missing_required_parameter")
    ids = await (_prompt_ids(state, request) if request.messages is None else _chat_ids(state, request))
    strings = await token_strings(state, ids) if request.return_token_strs else None
    answer = {"count": len(ids), "max_model_len": card.max_context, "tokens": ids, "token_strs": strings}
    return Response(orjson.dumps(answer), media_type="application/json")


@router.post(
    "/detokenize",
    summary="Tokens to text",
    openapi_extra=describes("DetokenizeRequest", "DetokenizedText"),
    response_class=Response,
)
async def detokenize(http: Request) -> Response:
    """The text of token ids, control tokens by their names."""
    state = state_of(http)
    body = await read_json(http, state.config)
    request = parse_request(DetokenizeRequest, body, state.config)
    state.check_model(request.model)
    if request.tokens == []:
        return Response(orjson.dumps({"prompt": ""}), media_type="application/json")
    if not isinstance(request.tokens, list):
        raise BadRequestError("'tokens' must be a list of token ids.", param="tokens", code="invalid_type")
    segment = parse_token_ids(request.tokens, "tokens", state.card.vocab_size)
    text = (await state.query("detokenize", {"ids": list(segment.ids or ())}))["text"]
    return Response(orjson.dumps({"prompt": text}), media_type="application/json")


async def _prompt_ids(state: ServerState, request: TokenizeRequest) -> list[int]:
    body = {"text": request.prompt, "add_special_tokens": request.add_special_tokens is not False}
    ids: list[int] = list((await state.query("tokenize", body))["ids"])
    return ids


async def _chat_ids(state: ServerState, request: TokenizeRequest) -> list[int]:
    check_chat_model(state)
    segments = parse_messages(request.messages, state.config)
    if request.continue_final_message:
        segments = continue_last(segments)
    tools = read_chat_tools(request.tools, state.config)
    return await chat_tokens(state, segments, tools, add_generation_prompt=request.add_generation_prompt is not False)
