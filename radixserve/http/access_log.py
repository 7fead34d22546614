"""One line a request: method, path, status, time. Never a body, a query string or a key."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from radixserve.http.errors import CLIENT_CLOSED_REQUEST

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from radixserve.http.metrics import Metrics

log = logging.getLogger("radixserve.http.access")

#: What is scraped all the time is logged only for debugging.
_QUIET = ("/health", "/metrics")


class AccessLog:
    """ASGI middleware; also counts the answers."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log it when it is over."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        started = time.monotonic()

        async def sender(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sender)
        finally:
            self._record(scope, status, time.monotonic() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # The route's pattern, not the path: a scan of made-up paths must not become as many time series.
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.responses.labels(scope["method"], route, str(status)).inc()
        level = logging.DEBUG if route in _QUIET and status != CLIENT_CLOSED_REQUEST else logging.INFO
        log.log(
            level, "%s %s %d %.3f s", scope["method"], scope["path"] if route != "other" else "(unknown path)", status, seconds
        )
