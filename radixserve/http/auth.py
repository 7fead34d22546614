"""The caller's key. It is passed on to the tokenizer process, which alone knows whom it names; nothing is decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve.http.errors import ApiError

if TYPE_CHECKING:
    from fastapi import Request


def api_key(request: Request) -> str:
    """The bearer token of the header Authorization, else what `x-api-key` has (Anthropic's header), else ""; 401 for another scheme."""
    header = request.headers.get("authorization", "").strip()
    if not header:
        return request.headers.get("x-api-key", "").strip()
    scheme, _, key = header.partition(" ")
    if scheme.lower() != "bearer":
        raise ApiError("Send the API key as 'Authorization: Bearer KEY'.", status=401)
    return key.strip()
