"""Server-sent events, and how a client that goes away stops its work."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.responses import Response

from radixserve.http.errors import ApiError, ClientDisconnectedError
from radixserve.http.ratelimits import ratelimit_headers
from radixserve_tokenizer.protocol import Delta

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Receive, Scope, Send

    from radixserve.http.bridge import RunningPrograms
    from radixserve.http.event_forms import EventForm
    from radixserve.http.metrics import RequestTimer
    from radixserve_tokenizer.protocol import Done

log = logging.getLogger("radixserve.http")

ResultT = TypeVar("ResultT")

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class ChunkWriter(Protocol):
    """How one API writes its stream; each method returns the chunks for one event."""

    @property
    def form(self) -> EventForm:
        """How its events look on the wire."""
        ...

    def delta(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """New output of a choice."""
        ...

    def done(self, choice: int, done: Done) -> list[dict[str, Any]]:
        """The end of a choice, with what its deltas did not have yet."""
        ...

    def end(self) -> list[dict[str, Any]]:
        """After all choices."""
        ...


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run `work`, and cancel it when the client closes its connection (then raises `ClientDisconnectedError`)."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnectedError
    finally:
        for task in (worker, watcher):
            task.cancel()
        # Leaves nothing behind: the programs are closed when this returns.
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ProgramStream(Response):
    """Runs programs and streams what they write. Nothing is sent before all are admitted and have begun to answer.

    Until then an error is raised and becomes an ordinary HTTP answer; afterwards it is an event, and the stream ends.
    """

    media_type = "text/event-stream"

    def __init__(self, programs: RunningPrograms, writer: ChunkWriter, timer: RequestTimer) -> None:
        super().__init__(headers=_HEADERS)
        # The length isn't known.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._programs = programs
        self._writer = writer
        self._timer = timer
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI response."""
        try:
            await until_disconnect(receive, self._run(send))
        except ClientDisconnectedError:
            if not self._started:
                raise

    async def _run(self, send: Send) -> None:
        with self._timer:
            async with self._programs as programs:
                await programs.admitted()
                self._started = True
                limits = [(name.encode(), value.encode()) for name, value in ratelimit_headers(programs.limits).items()]
                headers = [*self.raw_headers, *limits]
                await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
                last = await self._answer(programs, send)
        # Only now: once the body is complete the connection counts as closed.
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _answer(self, programs: RunningPrograms, send: Send) -> bytes:
        """Send all but the last bytes, which are returned."""
        writer = self._writer
        try:
            async for choice, event in programs:
                self._timer.event(choice, event, programs.arrived_at)
                chunks = writer.delta(choice, event) if isinstance(event, Delta) else writer.done(choice, event)
                if chunks:
                    await send(
                        {"type": "http.response.body", "body": b"".join(map(writer.form.event, chunks)), "more_body": True}
                    )
                programs.written()
        except ApiError as error:
            log.warning("a stream ended with an error: %s", error.code)
            self._timer.failed()
            return writer.form.error(error)
        return b"".join(map(writer.form.event, writer.end())) + writer.form.end()
