"""Server-sent events of a streamed chat completion, read into an `Outcome`. Fast, as it runs for every token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from radixserve.bench.ask import Outcome

#: Fields of a delta that hold output other than text, by the names that servers use.
_BESIDE_TEXT = ("reasoning_content", "reasoning", "tool_calls")


class StreamReader:
    """Reads the events of one answer."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._last_s: dict[int, float] = {}
        self._texts: dict[int, list[str]] = {}
        self._ended = False

    async def read(self, chunks: AsyncIterator[bytes]) -> None:
        """To the end of the stream. One that breaks off before `[DONE]` is an error."""
        rest = b""
        async for chunk in chunks:
            now = time.perf_counter()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), now)
        if rest.startswith(b"data:"):
            self._event(rest[5:].strip(), time.perf_counter())
        self._outcome.texts = ["".join(self._texts[index]) for index in sorted(self._texts)]
        if not self._ended and not self._outcome.error:
            self._outcome.error = "the stream ended without [DONE]"

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._ended = True
            return
        try:
            event: Any = orjson.loads(data)
        except ValueError:
            self._outcome.error = f"an event that is no JSON: {data[:200].decode('utf-8', 'replace')}"
            return
        if not isinstance(event, dict):
            self._outcome.error = f"an event that is no object: {data[:200].decode('utf-8', 'replace')}"
            return
        fields = cast("dict[str, Any]", event)
        if "error" in fields:
            self._outcome.error = f"in the stream: {str(fields['error'])[:400]}"
        read_usage(fields.get("usage"), self._outcome)
        for choice in fields.get("choices") or ():
            self._choice(choice, now)

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        outcome = self._outcome
        if choice.get("finish_reason"):
            outcome.finish_reasons.append(choice["finish_reason"])
        delta = choice.get("delta") or {}
        text = delta.get("content")
        # Reasoning and calls are output as well: their time counts, though they are no part of the text.
        if not (text or any(delta.get(name) for name in _BESIDE_TEXT)):
            return
        index = choice.get("index", 0)
        outcome.num_chunks += 1
        if outcome.first_s is None:
            outcome.first_s = now
        before = self._last_s.get(index)
        if before is not None:
            outcome.gaps_s.append(now - before)
        self._last_s[index] = now
        self._texts.setdefault(index, []).append(text or "")


def read_usage(usage: dict[str, Any] | None, outcome: Outcome) -> None:
    """OpenAI's `usage` object, whose last form in a stream counts."""
    if not usage:
        return
    outcome.prompt_tokens = usage.get("prompt_tokens", outcome.prompt_tokens)
    outcome.reported_tokens = usage.get("completion_tokens", outcome.reported_tokens)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is not None:
        outcome.cached_tokens = cached
