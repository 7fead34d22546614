"""Errors in OpenAI's nested body (under /v1/messages in Anthropic's), with the status that fits.

    ApiError                  anything that a client is told
      BadRequestError         400, names the parameter
      ModelNotFoundError      404
      BodyTimeoutError        408
      HeaderTimeoutError      408
      BodyTooLargeError       413
      UnavailableError        503, with Retry-After
    ClientDisconnectedError   the client is gone; nobody is told anything

What the engine says (`Refused`, `Failed`, `Goodbye`) becomes an `ApiError` in `from_event`.
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import Response
from starlette.exceptions import HTTPException

from radixserve.http.messages_api.errors import PREFIX, error_body
from radixserve.http.ratelimits import ratelimit_headers
from radixserve_tokenizer.protocol import Failed, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request

    from radixserve_tokenizer.protocol import Goodbye, RateLimits

log = logging.getLogger("radixserve.http")

CLIENT_CLOSED_REQUEST = 499

_ITEM = re.compile(r"(\w+)\[(\d+)\]((?:\.\w+)?)")

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    401: "invalid_api_key",
    405: "method_not_allowed",
    429: "rate_limit_exceeded",
    503: "service_unavailable",
    500: "internal_error",
}


def error_type(status: int) -> str:
    """OpenAI's `type` for a status."""
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")


class ApiError(Exception):
    """What a client is told. `retry_after_s` above 0 becomes the header Retry-After, `limits` those that begin with x-ratelimit-."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 500,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float = 0.0,
        limits: RateLimits | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code if code is not None else _CODES.get(status)
        self.param = param
        self.retry_after_s = retry_after_s
        self.limits = limits

    def body(self) -> dict[str, Any]:
        """The nested object that OpenAI's clients read."""
        return {"error": {"message": self.message, "type": error_type(self.status), "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers beside the content type."""
        headers = ratelimit_headers(self.limits)
        if self.retry_after_s > 0:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


class BadRequestError(ApiError):
    """400: the request can't be served as it is."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, status=400, code=code, param=param)


class ModelNotFoundError(ApiError):
    """404: no model of that name is served here."""

    def __init__(self, name: str, served: tuple[str, ...]) -> None:
        names = ", ".join(repr(one) for one in served)
        super().__init__(
            f"The model {name[:100]!r} does not exist. This server serves {names}.",
            status=404,
            code="model_not_found",
            param="model",
        )


class BodyTimeoutError(ApiError):
    """408: the body did not come in time. The connection is closed: what still comes over it would be read as the next request."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request body did not arrive within {timeout_s:g} seconds.", status=408, code="request_timeout")

    def headers(self) -> dict[str, str]:
        """With the end of the connection."""
        return {**super().headers(), "Connection": "close"}


class HeaderTimeoutError(ApiError):
    """408: the head of a request did not come in time. The connection is closed."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"The request's head did not arrive within {timeout_s:g} seconds.", status=408, code="request_timeout")

    def headers(self) -> dict[str, str]:
        """With the end of the connection."""
        return {**super().headers(), "Connection": "close"}


class BodyTooLargeError(ApiError):
    """413: the body is larger than the server takes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than the limit of {limit_bytes} bytes.", status=413, code="request_too_large"
        )


class UnavailableError(ApiError):
    """503: not now; the same request may succeed later."""

    def __init__(self, message: str, *, code: str = "service_unavailable", retry_after_s: float = 1.0) -> None:
        super().__init__(message, status=503, code=code, retry_after_s=retry_after_s)


class ClientDisconnectedError(Exception):
    """The client closed its connection."""


def from_event(event: Refused | Failed | Goodbye, request_fields: Mapping[str, str]) -> ApiError:
    """What the engine said, for the client. `request_fields`: the request's names for what the engine calls otherwise."""
    if isinstance(event, Refused):
        status = event.status if 400 <= event.status <= 599 else 503
        retry_after_s = event.retry_after_s or (1.0 if status in (429, 503) else 0.0)
        return ApiError(event.message, status=status, code=event.code or None, retry_after_s=retry_after_s, limits=event.limits)
    if isinstance(event, Failed):
        status = event.status if 400 <= event.status <= 599 else 500
        retry_after_s = 1.0 if status in (429, 503) else 0.0
        return ApiError(
            event.message,
            status=status,
            code=event.code or None,
            param=_renamed(event.param, request_fields) or None,
            retry_after_s=retry_after_s,
        )
    return UnavailableError(event.message or "The connection to the engine was lost. Try again.", code="connection_lost")


def _renamed(param: str, request_fields: Mapping[str, str]) -> str:
    """The request's name for what the engine calls `param`. Fields of one item of a list go by the name with empty brackets."""
    if param in request_fields:
        return request_fields[param]
    found = _ITEM.match(param)
    if found is None:
        return param
    name = request_fields.get(f"{found[1]}[]{found[3]}", f"{found[1]}[]{found[3]}")
    return name.replace("[]", f"[{found[2]}]", 1) + param[found.end() :]


def error_response(error: ApiError, path: str) -> Response:
    """The whole HTTP answer, in the form of the API that `path` belongs to. The body is valid UTF-8 whatever the message quotes."""
    body = error_body(error) if path == PREFIX or path.startswith(f"{PREFIX}/") else error.body()
    return Response(_dumps(body), status_code=error.status, headers=error.headers(), media_type="application/json")


def _dumps(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate that reached a message
        told: dict[str, Any] = {
            **body["error"],
            "message": str(body["error"]["message"]).encode("utf-8", "replace").decode("utf-8"),
        }
        if "param" in told:
            told["param"] = None
        return orjson.dumps({**body, "error": told})


def install_handlers(app: FastAPI) -> None:
    """Every error of the app, also unknown paths and our own bugs, answers in OpenAI's form."""

    async def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error_response(error, request.url.path)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 404:
            message = f"Unknown path {request.url.path!r}. /docs lists what this server answers."
        elif error.status_code == 405:
            message = f"{request.method} is not allowed on {request.url.path!r}."
        response = error_response(ApiError(message, status=error.status_code), request.url.path)
        response.headers.update(error.headers or {})
        return response

    async def on_disconnect(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def on_bug(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        failed = ApiError("The server failed to answer this request. Its log has the details.", status=500)
        return error_response(failed, request.url.path)

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(ClientDisconnectedError, on_disconnect)
    app.add_exception_handler(Exception, on_bug)
