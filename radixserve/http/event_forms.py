"""How a stream's events are written: OpenAI's bare data with an end mark, or events with names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson

if TYPE_CHECKING:
    from radixserve.http.errors import ApiError


class EventForm(Protocol):
    """The bytes of a stream."""

    def event(self, event: dict[str, Any]) -> bytes:
        """One event."""
        ...

    def end(self) -> bytes:
        """What follows the last event of a stream that went well."""
        ...

    def error(self, error: ApiError) -> bytes:
        """The event that ends a stream that went wrong."""
        ...


class DataEvents:
    """Chat and completions: `data: {...}`, and `data: [DONE]` at the end."""

    def event(self, event: dict[str, Any]) -> bytes:
        """One event."""
        return b"data: " + orjson.dumps(event) + b"\n\n"

    def end(self) -> bytes:
        """OpenAI's end mark."""
        return b"data: [DONE]\n\n"

    def error(self, error: ApiError) -> bytes:
        """The nested error object."""
        return self.event(error.body())


def named(event: dict[str, Any]) -> bytes:
    """An event with its `type` as the name."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
