"""/v1/models: the names that a request's `model` may have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, Request

from radixserve.http.accounts import require_key
from radixserve.http.openapi import KEY
from radixserve.http.responses import ErrorAnswer, ModelList, ModelObject
from radixserve.http.state import state_of

if TYPE_CHECKING:
    from radixserve.http.state import ServerState

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[Depends(require_key)])

_STARTED = int(time.time())


def _model(state: ServerState, name: str) -> dict[str, Any]:
    card = state.card
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "radixserve",
        "root": card.name,
        "parent": None,
        "max_model_len": card.max_context,
    }


@router.get(
    "",
    summary="List the models",
    response_model=ModelList,
    responses={401: {"model": ErrorAnswer}, 503: {"model": ErrorAnswer}},
    openapi_extra={"security": KEY},
)
async def list_models(request: Request) -> dict[str, Any]:
    """Every name that is served; all are the same model."""
    state = state_of(request)
    return {"object": "list", "data": [_model(state, name) for name in state.served_names]}


@router.get(
    "/{name:path}",
    summary="One model",
    response_model=ModelObject,
    responses={401: {"model": ErrorAnswer}, 404: {"model": ErrorAnswer}, 503: {"model": ErrorAnswer}},
    openapi_extra={"security": KEY},
)
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """One model by name; 404 for any other."""
    state = state_of(request)
    return _model(state, state.check_model(name))
