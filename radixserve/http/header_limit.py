"""A bound on a request's headers, with an answer that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.http.errors import ApiError, error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class HeaderLimit:
    """ASGI middleware: 431 where names and values of all headers, or the path with its query, have more than `max_bytes` bytes."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http":
            size = sum(len(name) + len(value) for name, value in scope["headers"])
            target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
            if max(size, target) > self._max_bytes:
                error = ApiError(
                    f"The request's headers or its address are larger than the limit of {self._max_bytes} bytes.",
                    status=431,
                    code="headers_too_large",
                )
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)
