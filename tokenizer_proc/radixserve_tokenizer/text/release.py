"""Bytes of an output on their way out: withheld while they may belong to a stop string, then let go for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence


class Release:
    """The bytes of the ids that were fed, and the control tokens between them, in order.

    Control tokens have no place among the bytes that the runtime counts, so `hold_bytes` and `cut_bytes` never count them.
    """

    def __init__(self, vocabulary: Sequence[bytes], controls: Container[int]) -> None:
        """`controls`: the control tokens that are to come out; the others are nothing."""
        self._vocabulary = vocabulary
        self._controls = controls
        self._num_bytes = 0
        self._num_shown = 0
        self._held = bytearray()
        self._control_at: list[tuple[int, int]] = []
        """Control tokens not yet let go, each before the byte of that number."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the output so far, let go or withheld."""
        return self._num_bytes

    def feed(self, token_ids: Iterable[int], hold_bytes: int = 0) -> list[bytes | int]:
        """What these tokens let go: bytes, and ids of control tokens. The last `hold_bytes` bytes of the output so far stay."""
        for id in token_ids:
            if id in self._controls:
                self._control_at.append((self._num_bytes, id))
            token = self._vocabulary[id] if id < len(self._vocabulary) else b""  # rows that only pad the LM head have no text
            self._held += token
            self._num_bytes += len(token)
        return self._until(self._num_bytes - hold_bytes)

    def finish(self, cut_bytes: int = 0) -> list[bytes | int]:
        """What was withheld, less the output's last `cut_bytes` bytes.

        Raises `ValueError` when bytes to be cut were let go already: whoever fed them should have held them.
        """
        end = self._num_bytes - cut_bytes
        if end < self._num_shown:
            raise ValueError(f"{self._num_shown - end} of the {cut_bytes} bytes to be cut were shown already")
        pieces = self._until(end)
        self._held.clear()
        self._control_at.clear()
        return pieces

    def _until(self, end: int) -> list[bytes | int]:
        pieces: list[bytes | int] = []
        while self._control_at and self._control_at[0][0] <= end:
            at, control = self._control_at.pop(0)
            self._bytes_until(at, pieces)
            pieces.append(control)
        self._bytes_until(end, pieces)
        return pieces

    def _bytes_until(self, end: int, pieces: list[bytes | int]) -> None:
        """Let the withheld bytes up to the output's byte `end` go."""
        count = end - self._num_shown
        if count > 0:
            pieces.append(bytes(self._held[:count]))
            del self._held[:count]
            self._num_shown = end
