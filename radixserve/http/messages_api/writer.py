"""How an answer is written in Anthropic's form, whole and as its sequence of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from radixserve.http.event_forms import named
from radixserve.http.messages_api.errors import error_body
from radixserve.http.pieces import Arguments, CallBegin, Output, Reasoning, Text
from radixserve.http.responses_api.output import new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.http.errors import ApiError
    from radixserve.http.pieces import Piece
    from radixserve_tokenizer.protocol import Delta, Done, Usage


class MessageEvents:
    """The bytes of its stream: events with names."""

    def event(self, event: dict[str, Any]) -> bytes:
        """One event."""
        return named(event)

    def end(self) -> bytes:
        """Nothing: `message_stop` was the end."""
        return b""

    def error(self, error: ApiError) -> bytes:
        """The event `error`."""
        return named(error_body(error))


class MessageWriter:
    """Writes one message. What its prompt cost is known with the first tokens, and told in `message_start`."""

    def __init__(self, name: str) -> None:
        self.form = MessageEvents()
        self._head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": name}
        self._output = Output()
        self._begun = False
        self._num_blocks = 0
        self._open = ""
        """Type of the open block; empty when none is."""

    def whole(self, choices: Sequence[Done]) -> dict[str, Any]:
        """The answer that isn't streamed."""
        [done] = choices
        content: list[dict[str, Any]] = []
        if done.reasoning:
            content.append({"type": "thinking", "thinking": done.reasoning, "signature": ""})
        if done.value:
            content.append({"type": "text", "text": done.value})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)} for call in done.calls
        ]
        return {**self._head, "content": content, **_stop(done), "usage": _usage(done.usage)}

    def delta(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """Events for new output."""
        pieces, _ = self._output.delta(delta)
        return [*self._begin(delta.usage), *self._take(pieces)]

    def done(self, choice: int, done: Done) -> list[dict[str, Any]]:
        """The last events."""
        pieces, _ = self._output.rest(done)
        return [
            *self._begin(done.usage),
            *self._take(pieces),
            *self._close(),
            {"type": "message_delta", "delta": _stop(done), "usage": _usage(done.usage)},
            {"type": "message_stop"},
        ]

    def end(self) -> list[dict[str, Any]]:
        """`done` has said it."""
        return []

    def _begin(self, usage: Usage | None) -> list[dict[str, Any]]:
        if self._begun:
            return []
        self._begun = True
        assert usage is not None, "an op's first event says what its prompt has"
        told = {"stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}
        message: dict[str, Any] = {**self._head, "content": [], **told}
        return [{"type": "message_start", "message": message}]

    def _take(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for piece in pieces:
            match piece:
                case Text(text):
                    events += self._block("text", {"text": ""})
                    delta = {"type": "text_delta", "text": text}
                case Reasoning(text):
                    events += self._block("thinking", {"thinking": "", "signature": ""})
                    delta = {"type": "thinking_delta", "thinking": text}
                case CallBegin(_, id_, name):
                    events += self._close()
                    events += self._block("tool_use", {"id": id_, "name": name, "input": {}})
                    continue
                case Arguments(_, text):
                    delta = {"type": "input_json_delta", "partial_json": text}
            events.append({"type": "content_block_delta", "index": self._num_blocks - 1, "delta": delta})
        return events

    def _block(self, kind: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """Open a block of a kind; nothing when one is open already."""
        if self._open == kind:
            return []
        events = self._close()
        self._open = kind
        self._num_blocks += 1
        block = {"type": kind, **fields}
        return [*events, {"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block}]

    def _close(self) -> list[dict[str, Any]]:
        if not self._open:
            return []
        self._open = ""
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]


def _object(arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads(arguments)
    return parsed


def _stop(done: Done) -> dict[str, Any]:
    sequence = done.stop_reason if isinstance(done.stop_reason, str) else None
    if done.finish_reason == "length":
        reason = "max_tokens"
    elif done.finish_reason == "tool_calls":
        reason = "tool_use"
    else:
        reason = "end_turn" if sequence is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": sequence}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
