"""Key-value metadata of a GGUF file.

The `gguf` package's reader builds an object for every string of every array and every tensor, which takes seconds; the
metadata alone is read in some 50 ms. The layout is that of GGUF versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9
_MAX_DEPTH = 4


class GGUFError(ValueError):
    """Not a GGUF file that can be read; the text says why."""


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys with their values: numbers, booleans, strings (bytes that are not UTF-8 become U+FFFD) and lists. Raises `GGUFError`, `OSError`."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise GGUFError(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(_Cursor(data))
            except (struct.error, IndexError) as error:
                raise GGUFError(f"{path} ends inside its metadata: it is damaged or not whole") from error


def _read(cursor: _Cursor) -> dict[str, Any]:
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise GGUFError(f"GGUF version {version} is not supported; versions 2 and 3 (little-endian) are")
    cursor.scalar("Q")  # number of tensors
    return {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(cursor.scalar("Q"))}


class _Cursor:
    """A position in the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        value = layout.unpack_from(self._data, self._at)[0]
        self._at += layout.size
        return value

    def string(self) -> str:
        return self._strings(1)[0]

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY or depth > _MAX_DEPTH:
            raise GGUFError(f"metadata value of unknown type {kind} at byte {self._at}")
        item_kind, count = self.scalar("I"), self.scalar("Q")
        if count > len(self._data) - self._at:  # before anything is allocated for it
            raise IndexError
        if item_kind == _STRING:
            return self._strings(count)
        if item_kind in _SCALARS:
            layout = struct.Struct(f"<{count}{_SCALARS[item_kind]}")
            values = list(layout.unpack_from(self._data, self._at))
            self._at += layout.size
            return values
        return [self.value(item_kind, depth + 1) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        data, at, size = self._data, self._at, len(self._data)
        length_at = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        for _ in range(count):
            begin = at + 8
            at = begin + length_at(data, at)[0]
            if at > size:
                raise IndexError
            strings.append(data[begin:at].decode("utf-8", "replace"))
        self._at = at
        return strings
