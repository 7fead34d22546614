"""A request's body: read within a limit of bytes and of time, parsed by orjson from the raw bytes.

orjson refuses what JSON does not have: NaN and Infinity, numbers beyond a double, lone surrogates, invalid UTF-8. U+0000 is refused
here, wherever it stands: as a byte JSON does not have it, and grammars are C strings at their end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import orjson

from radixserve.http.errors import ApiError, BadRequestError, BodyTimeoutError, BodyTooLargeError, ClientDisconnectedError

if TYPE_CHECKING:
    from fastapi import Request

    from radixserve.http.config import HttpConfig

#: A body over the limit is read on (and thrown away) up to this many times the limit, so that the client sees the answer.
_DRAIN_FACTOR = 8


async def read_json(request: Request, config: HttpConfig) -> dict[str, Any]:
    """The body as an object; raises `ApiError` with 400, 408, 413 or 415."""
    content_type = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(
            f"Content-Type must be application/json, not {content_type[:100]!r}.", status=415, code="unsupported_media_type"
        )
    try:
        async with asyncio.timeout(config.body_timeout_s):
            raw = await _read(request, config.max_body_bytes)
    except TimeoutError:
        raise BodyTimeoutError(config.body_timeout_s) from None
    return parse_json(raw)


def parse_json(raw: bytes) -> dict[str, Any]:
    """The object in `raw`; raises `BadRequestError` for anything else."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"The request body is not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(body, dict):
        raise BadRequestError("The request body must be a JSON object.", code="invalid_json")
    if b"\\u0000" in raw:
        where = find_nul(cast("dict[str, Any]", body))
        if where is not None:
            raise BadRequestError(f"The character U+0000 is not allowed (in {where!r}).", param=where, code="invalid_unicode")
    return cast("dict[str, Any]", body)


def find_nul(body: Any) -> str | None:
    """Path of the first string or key that holds U+0000, e.g. `tools[0].function.name`; None when there is none."""
    stack: list[tuple[str, Any]] = [("", body)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str):
            if "\0" in value:
                return path
        elif isinstance(value, list):
            stack.extend((f"{path}[{i}]", item) for i, item in enumerate(value))
        elif isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                if "\0" in key:
                    return path or "the top level"
                stack.append((f"{path}.{key}" if path else key, item))
    return None


def json_depth(value: Any, limit: int) -> int:
    """How deep lists and objects nest; stops counting above `limit`."""
    level: list[Any] = [value]
    depth = 0
    while level and depth <= limit:
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("dict[str, Any]", item).values())
            elif isinstance(item, list):
                below.extend(item)
        nested = any(isinstance(item, (dict, list)) for item in level)
        depth += nested
        level = below
    return depth


async def _read(request: Request, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    received = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        chunk: bytes = message.get("body", b"")
        received += len(chunk)
        if received <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
        if not message.get("more_body", False) or received > max_bytes * _DRAIN_FACTOR:
            break
    if received > max_bytes:
        raise BodyTooLargeError(max_bytes)
    return b"".join(chunks)
