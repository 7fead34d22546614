"""/health, /metrics and /version: they answer fast whatever state the engine is in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from radixserve import __version__
from radixserve.http.accounts import accounts_for_metrics
from radixserve.http.auth import api_key
from radixserve.http.errors import ApiError
from radixserve.http.openapi import KEY, ref
from radixserve.http.state import state_of

if TYPE_CHECKING:
    from radixserve.http.state import ServerState

router = APIRouter(tags=["server"])

_HEALTHY = "ok"
_REPORT: dict[str, Any] = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}


@router.get(
    "/health",
    summary="Is the engine making progress?",
    responses={
        status: {"description": text, "content": {"application/json": {"schema": _REPORT}}}
        for status, text in ((200, "It answers, and its loop moves."), (503, "Loading, stuck, or down; `status` says which."))
    },
)
async def health(request: Request) -> Response:
    """200 when the engine answers and its loop moves; 503 while it loads, is stuck, or is down. The body's `status` says which."""
    state = state_of(request)
    try:
        report = await state.query("health")
        status = str(report.get("status", _HEALTHY))
    except ApiError as error:
        status = error.code if error.code in ("loading", "engine_timeout") else "unreachable"
        report = {"message": error.message}
    body: dict[str, Any] = {**report, "status": status}
    return Response(
        orjson.dumps(body, default=str), status_code=200 if status == _HEALTHY else 503, media_type="application/json"
    )


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_description="Prometheus' text format.",
    response_class=PlainTextResponse,
    responses={401: {"description": "The key is unknown.", "content": {"application/json": {"schema": ref("ErrorAnswer")}}}},
    openapi_extra={"security": KEY},
)
async def metrics(request: Request) -> Response:
    """Prometheus' text format. When the engine does not answer, `radixserve:up` is 0 and its own families are missing.

    No key is needed; families with the label `tenant` show the tenants whose accounts the key may see (all for an admin's).
    """
    state = state_of(request)
    key = api_key(request)
    stats, accounts = await asyncio.gather(_stats(state), accounts_for_metrics(state, key))
    return Response(state.metrics.exposition(stats, accounts), media_type=CONTENT_TYPE_LATEST)


async def _stats(state: ServerState) -> dict[str, Any] | None:
    try:
        return await state.query("stats")
    except ApiError:
        return None


@router.get("/version", summary="The server's version")
async def version() -> dict[str, str]:
    """The version of RadixServe."""
    return {"version": __version__}


@router.get("/", summary="Where to go from here", include_in_schema=False)
async def root() -> dict[str, str]:
    """A pointer for whoever opens the address in a browser."""
    return {
        "name": "RadixServe",
        "version": __version__,
        "docs": "/docs",
        "api": "/v1",
        "health": "/health",
        "metrics": "/metrics",
    }
