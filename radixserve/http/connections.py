"""Connections that wait are bounded in time and in number: uvicorn's own protocol reads a head for as long as it takes.

A client may take `header_timeout_s` for the head of a request, from its first byte on (of the first one from when it connected),
and as long for the rest of a body that nobody reads any more because the answer is out. Who reads nothing of an answer for
`stall_timeout_s` is cut off. Of more than `max_connections` each new one is answered with 503; of many more it is cut off.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, ClassVar

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

from radixserve.http.errors import ApiError, HeaderTimeoutError, UnavailableError, error_response

if TYPE_CHECKING:
    import asyncio
    from typing import Literal

    from starlette.types import Receive, Scope, Send

    from radixserve.http.config import HttpConfig

log = logging.getLogger("radixserve.http")

#: Beyond the limit so many connections are told why; what comes beside them is cut off at once.
_MAX_TOLD = 256
_LOG_EVERY_S = 10.0
_PROBES = ("/health", "/metrics")


class BoundedProtocol(H11Protocol):
    """One connection. Make it by `bounded_protocol`."""

    settings: ClassVar[HttpConfig]
    refusals: ClassVar[Refusals]
    _timer: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _was_asked: bool = False
    """A request has begun."""
    _awaited: Literal["", "head", "rest"] = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or prepare to refuse what it asks."""
        super().connection_made(transport)
        above = len(self.connections) - self.settings.max_connections
        if above > 0:
            self.refusals.count()
            self.app = _refusing(self.app)
        if above > _MAX_TOLD:
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head or of a body."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """An answer is out."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._end_stall()
        self._stall = self.loop.call_later(self.settings.stall_timeout_s, self._stalled, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It reads again."""
        self._end_stall()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._await("")
        self._end_stall()
        super().connection_lost(exc)

    def _stalled(self, before: int) -> None:
        """Nothing was read for that long, unless there is less to send than `before` (bytes)."""
        unsent = self.transport.get_write_buffer_size()
        if unsent < before:
            self._stall = self.loop.call_later(self.settings.stall_timeout_s, self._stalled, unsent)
        else:
            self.transport.abort()

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _watch(self) -> None:
        if self.transport.is_closing():
            self._await("")
        elif self.conn.their_state is h11.IDLE:
            # Between two requests uvicorn's own timer runs, until the first byte comes.
            self._await("head" if not self._was_asked or self.conn.trailing_data[0] else "")
            return
        self._was_asked = True
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            self._await("rest")
        else:
            self._await("")

    def _await(self, what: Literal["", "head", "rest"]) -> None:
        """Time begins when something else is awaited, not with each byte of the same."""
        if what == self._awaited:
            return
        self._awaited = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what:
            self._timer = self.loop.call_later(self.settings.header_timeout_s, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._awaited == "head" and self.conn.trailing_data[0]:
            self._tell(HeaderTimeoutError(self.settings.header_timeout_s))
        self.transport.close()

    def _tell(self, error: ApiError) -> None:
        """An answer to what is no request yet."""
        body = orjson.dumps(error.body())
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers()}
        for event in (
            h11.Response(status_code=error.status, headers=list(headers.items()), reason=b"Request Timeout"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")


class Refusals:
    """Connections above the limit, told in the log once in a while."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num = 0
        self._told_at = -_LOG_EVERY_S

    def count(self) -> None:
        """One more."""
        self._num += 1
        now = time.monotonic()
        if now - self._told_at >= _LOG_EVERY_S:
            log.warning("%d connections were refused: %d are open, the limit", self._num, self._limit)
            self._told_at, self._num = now, 0


def bounded_protocol(settings: HttpConfig) -> type[BoundedProtocol]:
    """The protocol of one server's connections."""

    class Bounded(BoundedProtocol):
        pass

    Bounded.settings = settings
    Bounded.refusals = Refusals(settings.max_connections)
    return Bounded


def _refusing(app: Any) -> Any:
    """What answers on a connection above the limit: probes still get the truth, or a server that is busy would be taken for a dead one."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _PROBES:
            await app(scope, receive, send)
            return
        error = UnavailableError("This server has as many connections as it takes. Try again.", code="too_many_connections")
        response = error_response(error, scope["path"])
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    return refuse
