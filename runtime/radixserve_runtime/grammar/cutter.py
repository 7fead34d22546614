"""Text into tokens, the longest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_TOKEN_BYTES = 32


class Cutter:
    """Cuts bytes into tokens of a vocabulary (b"" for tokens that are no text). Not always as a tokenizer would: it knows no merges."""

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        self._ids: dict[bytes, int] = {}
        for token_id, token in enumerate(vocabulary):
            if 0 < len(token) <= _MAX_TOKEN_BYTES:
                self._ids.setdefault(token, token_id)
        self._longest = max(map(len, self._ids), default=0)

    def cut(self, text: bytes, max_tokens: int) -> list[int]:
        """At most so many tokens that the text begins with; fewer where no token fits."""
        found: list[int] = []
        place = 0
        while place < len(text) and len(found) < max_tokens:
            for length in range(min(self._longest, len(text) - place), 0, -1):
                token_id = self._ids.get(text[place : place + length])
                if token_id is not None:
                    found.append(token_id)
                    place += length
                    break
            else:
                break
        return found
