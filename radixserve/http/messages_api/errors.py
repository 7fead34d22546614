"""Errors in Anthropic's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixserve.http.errors import ApiError

PREFIX = "/v1/messages"
"""Whatever fails under this path is told in this form."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """The object that Anthropic's clients read."""
    kind = _TYPES.get(error.status)
    if kind is None and error.status >= 500:
        kind = "overloaded_error" if error.code == "overloaded" else "api_error"
    return {"type": "error", "error": {"type": kind or "invalid_request_error", "message": error.message}}
