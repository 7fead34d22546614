"""How a response is written, whole and as OpenAI's sequence of events, and kept for the next request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from radixserve.http.event_forms import named
from radixserve.http.pieces import Output
from radixserve.http.responses_api.items import assistant_turn
from radixserve.http.responses_api.output import OutputItems

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve.http.errors import ApiError
    from radixserve.http.program import Segment
    from radixserve_tokenizer.protocol import Delta, Done, Usage


class ResponseEvents:
    """The bytes of its stream: events with names, numbered through."""

    def __init__(self, failed: Callable[[ApiError], dict[str, Any]]) -> None:
        self._failed = failed
        self._number = -1

    def event(self, event: dict[str, Any]) -> bytes:
        """One event."""
        self._number += 1
        return named({**event, "sequence_number": self._number})

    def end(self) -> bytes:
        """Nothing: the last event says that it is the last."""
        return b""

    def error(self, error: ApiError) -> bytes:
        """`response.failed`, with what there is of the response."""
        return self.event({"type": "response.failed", "response": self._failed(error)})


class ResponseWriter:
    """Writes one response. `head` has its fields but for status, output and usage; `keep` is told of one that ended well."""

    def __init__(self, head: dict[str, Any], *, logprobs: bool, keep: Callable[[dict[str, Any], Segment], None]) -> None:
        self.form = ResponseEvents(self._failed)
        self._head = head
        self._keep = keep
        self._items = OutputItems(logprobs=logprobs)
        self._output = Output()
        self._begun = False

    def whole(self, choices: Sequence[Done]) -> dict[str, Any]:
        """The answer that isn't streamed."""
        [done] = choices
        self._items.take(*self._output.rest(done))
        self._items.finish(_status(done))
        return self._finished(done)

    def delta(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """Events for new output."""
        return [*self._begin(), *self._items.take(*self._output.delta(delta))]

    def done(self, choice: int, done: Done) -> list[dict[str, Any]]:
        """The last events."""
        events = [*self._begin(), *self._items.take(*self._output.rest(done)), *self._items.finish(_status(done))]
        response = self._finished(done)
        return [*events, {"type": f"response.{response['status']}", "response": response}]

    def end(self) -> list[dict[str, Any]]:
        """`done` has said it."""
        return []

    def _begin(self) -> list[dict[str, Any]]:
        if self._begun:
            return []
        self._begun = True
        begun = self._response("in_progress")
        return [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]

    def _finished(self, done: Done) -> dict[str, Any]:
        status = _status(done)
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = self._response(
            status, incomplete_details=details, usage=_usage(done.usage), completed_at=int(time.time()), output=self._items.items
        )
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in done.calls
        ]
        self._keep(response, assistant_turn(done.value, done.reasoning, calls))
        return response

    def _failed(self, error: ApiError) -> dict[str, Any]:
        self._items.close("incomplete")
        told = {"code": "server_error", "message": error.message}
        return self._response("failed", error=told, output=self._items.items)

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {**self._head, "status": status, "error": None, "incomplete_details": None, "output": [], "usage": None, **fields}


def _status(done: Done) -> str:
    return "incomplete" if done.finish_reason == "length" else "completed"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
