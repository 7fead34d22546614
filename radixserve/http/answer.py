"""What chat and completions have in common: the head of an answer, running it whole or streamed, and the end of a choice."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from fastapi import Request, Response

from radixserve.http.accounts import tenant_of
from radixserve.http.auth import api_key
from radixserve.http.bridge import RunningPrograms
from radixserve.http.extension import find_extension
from radixserve.http.metrics import RequestTimer
from radixserve.http.program import Opening
from radixserve.http.ratelimits import ratelimit_headers
from radixserve.http.streaming import ChunkWriter, ProgramStream, until_disconnect
from radixserve_tokenizer.protocol import Done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.http.extension import Extension
    from radixserve.http.program import ProgramSpec
    from radixserve.http.schemas import SamplingRequest
    from radixserve.http.state import ServerState
    from radixserve_tokenizer.protocol import ModelCard


class Writer(ChunkWriter, Protocol):
    """How one API writes its answers."""

    def whole(self, choices: Sequence[Done]) -> dict[str, Any]:
        """The answer that isn't streamed."""
        ...


def head(prefix: str, kind: str, request: SamplingRequest, name: str, card: ModelCard) -> dict[str, Any]:
    """The fields that every answer and chunk begins with."""
    fields: dict[str, Any] = {
        "id": f"{prefix}-{secrets.token_hex(16)}",
        "object": kind,
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": f"fp_{card.fingerprint[:12]}",
    }
    if request.service_tier is not None:
        fields["service_tier"] = request.service_tier if request.service_tier in ("flex", "priority") else "default"
    return fields


def ending(done: Done) -> dict[str, Any]:
    """How a choice ended. `stop_reason` is vLLM's name and `matched_stop` SGLang's, for the stop string or token that ended it."""
    return {"finish_reason": done.finish_reason, "stop_reason": done.stop_reason, "matched_stop": done.stop_reason}


def opening(http: Request, request: SamplingRequest) -> Opening:
    """How the request's programs are opened."""
    return Opening(api_key=api_key(http), seed=request.seed, priority=request.effective_priority(), cache_salt=request.cache_salt)


async def respond(
    http: Request, state: ServerState, request: SamplingRequest, specs: list[ProgramSpec], writer: Writer
) -> Response:
    """Answer a chat or completions request."""
    num_choices = sum(spec.n for spec in specs)
    extension = find_extension(http.headers, request.radixserve, num_choices=num_choices)
    return await run(http, state, specs, opening(http, request), writer, extension=extension, stream=bool(request.stream))


async def run(
    http: Request,
    state: ServerState,
    specs: list[ProgramSpec],
    how: Opening,
    writer: Writer,
    *,
    extension: Extension,
    stream: bool,
) -> Response:
    """Run the programs and answer, whole or as a stream. A client that goes away ends them."""
    visit = None
    if extension.names_program:
        visit = state.agents.visit(await tenant_of(state, how.api_key), extension)
        how = replace(how, group=visit.group)
        specs = [replace(spec, lease_s=extension.lease_s) for spec in specs]
    programs = RunningPrograms(state.client, specs, how, state.config, state.crossing, visit)
    timer = RequestTimer(state.metrics, streamed=stream)
    if stream:
        return ProgramStream(programs, writer, timer)
    choices = await until_disconnect(http.receive, _collect(programs, timer))
    headers = ratelimit_headers(programs.limits)
    return Response(orjson.dumps(writer.whole(choices)), headers=headers, media_type="application/json")


async def _collect(programs: RunningPrograms, timer: RequestTimer) -> list[Done]:
    ended: dict[int, Done] = {}
    with timer:
        async with programs:
            await programs.admitted()
            async for choice, event in programs:
                timer.event(choice, event, programs.arrived_at)
                if isinstance(event, Done):
                    ended[choice] = event
    return [ended[choice] for choice in sorted(ended)]
