"""The items of an answer as they come into being, with the events that tell of it.

One item is open at a time. Whole answers go the same way: their events are thrown away.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from radixserve.http.logprobs import chat_logprobs
from radixserve.http.pieces import Arguments, CallBegin, Reasoning, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.http.pieces import Piece
    from radixserve_tokenizer.protocol import TokenLogprob


class OutputItems:
    """Turns pieces of output into items and events. Events have no sequence numbers yet."""

    def __init__(self, *, logprobs: bool) -> None:
        self.items: list[dict[str, Any]] = []
        """All items so far, the last of which may be open."""
        self._want_logprobs = logprobs
        self._logprobs: list[dict[str, Any]] = []
        """Of the open message."""
        self._texts: list[str] = []
        """Of the open item."""
        self._open = ""
        """Type of the open item; empty when none is."""

    def take(self, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """The events for new output."""
        told = chat_logprobs(logprobs)["content"] if self._want_logprobs and logprobs else []
        events: list[dict[str, Any]] = []
        for piece in pieces:
            match piece:
                case Text(text):
                    events += self._begin("message")
                    self._texts.append(text)
                    self._logprobs += told
                    events.append(self._at("response.output_text.delta", content_index=0, delta=text, logprobs=told))
                    told = []
                case Reasoning(text):
                    events += self._begin("reasoning")
                    self._texts.append(text)
                    events.append(self._at("response.reasoning_text.delta", content_index=0, delta=text))
                case CallBegin(_, id_, name):
                    events += self.close()
                    events += self._begin("function_call", call_id=id_, name=name)
                case Arguments(_, text):
                    self._texts.append(text)
                    events.append(self._at("response.function_call_arguments.delta", delta=text))
        return events

    def finish(self, status: str) -> list[dict[str, Any]]:
        """The last events. An answer without anything has an empty message."""
        events = [] if self.items else self._begin("message")
        return [*events, *self.close(status)]

    def close(self, status: str = "completed") -> list[dict[str, Any]]:
        """End the open item."""
        kind, self._open = self._open, ""
        if not kind:
            return []
        item, text = self.items[-1], "".join(self._texts)
        item["status"] = status
        events: list[dict[str, Any]] = []
        if kind == "function_call":
            item["arguments"] = text
            events.append(self._at("response.function_call_arguments.done", arguments=text, name=item["name"]))
        else:
            part = _part(kind, text, self._logprobs)
            item["content"] = [part]
            more = {"logprobs": self._logprobs} if kind == "message" else {}
            name = "output_text" if kind == "message" else "reasoning_text"
            events.append(self._at(f"response.{name}.done", content_index=0, text=text, **more))
            events.append(self._at("response.content_part.done", content_index=0, part=part))
        events.append({"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)})
        return events

    def _begin(self, kind: str, **fields: str) -> list[dict[str, Any]]:
        """Open an item of a kind; nothing when one is open already."""
        if self._open == kind:
            return []
        events = self.close()
        self._open, self._texts, self._logprobs = kind, [], []
        item = {**_new_item(kind), **fields}
        self.items.append(item)
        events.append({"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)})
        if kind != "function_call":
            events.append(self._at("response.content_part.added", content_index=0, part=_part(kind, "", [])))
        return events

    def _at(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def new_id(prefix: str) -> str:
    """An id in OpenAI's form."""
    return f"{prefix}_{secrets.token_hex(16)}"


def _new_item(kind: str) -> dict[str, Any]:
    match kind:
        case "message":
            return {"type": kind, "id": new_id("msg"), "status": "in_progress", "role": "assistant", "content": []}
        case "reasoning":
            return {"type": kind, "id": new_id("rs"), "status": "in_progress", "summary": [], "content": []}
        case _:
            return {"type": kind, "id": new_id("fc"), "status": "in_progress", "arguments": ""}
