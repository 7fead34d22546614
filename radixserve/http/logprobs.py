"""Log-probabilities in the two forms that OpenAI has: objects with bytes (chat) and parallel lists (completions)."""

from __future__ import annotations

import codecs
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_tokenizer.protocol import TokenLogprob

#: What OpenAI sends for a log-probability that JSON can't carry.
_FLOOR = -9999.0


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat answer or chunk."""
    content = [
        {
            **_chat_entry(entry.token, entry.logprob, entry.raw),
            "top_logprobs": [_chat_entry(top.token, top.logprob, top.raw) for top in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_entry(token: str, logprob: float | None, raw: bytes) -> dict[str, Any]:
    return {"token": token, "logprob": _finite(logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """Builds `choices[].logprobs` of a completions answer, whole or chunk by chunk; `text_offset` counts on from chunk to chunk.

    Offsets are characters into the choice's text. A token that is no UTF-8 alone is written `bytes:\\xNN...`, so that
    two such tokens can't fall on one key.
    """

    def __init__(self, num_alternatives: int, *, special_in_prompt: bool = False, special_in_output: bool = False) -> None:
        """Control tokens have no bytes of their own; the last two say whether the text nevertheless shows their names."""
        self._num_alternatives = num_alternatives
        self._special_in_prompt = special_in_prompt
        self._special_in_output = special_in_output
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def take(self, output: Sequence[TokenLogprob], prompt: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        """The object for these tokens, those of the echoed prompt first; they follow those of the earlier calls."""
        offsets = [self._place(entry, self._special_in_prompt) for entry in prompt]
        offsets += [self._place(entry, self._special_in_output) for entry in output]
        entries = [*prompt, *output]
        return {
            "tokens": [_name(entry.token, entry.raw) for entry in entries],
            "token_logprobs": [None if entry.logprob is None else _finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries] if self._num_alternatives > 0 else None,
            "text_offset": offsets,
        }

    def _place(self, entry: TokenLogprob, show_special: bool) -> int:
        """Where the token begins; counts on to its end."""
        offset = self._offset
        raw = entry.raw or (entry.token.encode() if show_special else b"")
        self._offset += len(self._decoder.decode(raw))
        return offset

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        best = {_name(top.token, top.raw): _finite(top.logprob) for top in entry.top}
        # As OpenAI does, the drawn token is there even when it isn't among the best.
        best.setdefault(_name(entry.token, entry.raw), _finite(entry.logprob))
        return best


def _name(token: str, raw: bytes) -> str:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
    return token


def _finite(logprob: float | None) -> float:
    return logprob if logprob is not None and math.isfinite(logprob) else _FLOOR
