"""The header of a GGUF file: settings and where each tensor lies.

The `gguf` library's own reader builds arrays for each of a vocabulary's strings, which takes seconds; a model needs none of
them. This one steps over string arrays, so that a file opens in milliseconds. The library still dequantises.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from radixserve_runtime.model.errors import BrokenCheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
#: Value type -> struct code of its scalar. All little-endian.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as torch has it (the file states it the other way round)."""
    kind: GGMLQuantizationType
    start: int
    """Byte in the file."""
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; of one element for a vector."""
        return self.num_bytes // self.shape[0]


class GgufFile:
    """An open (memory-mapped) file. Raises BrokenCheckpointError and UnsupportedModelError on construction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise BrokenCheckpointError(f"{path} can't be read: {error}") from error
        cursor = _Cursor(self._data.data)
        try:
            self._read_header(cursor)
        except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise BrokenCheckpointError(f"{path} is cut off or damaged in its header ({error}); download it again") from error

    def raw(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        """The stored bytes, [rows, bytes of a row] (read-only view)."""
        data = self._data[tensor.start : tensor.start + tensor.num_bytes]
        return data.reshape(tensor.shape[0], tensor.row_bytes)

    def _read_header(self, cursor: _Cursor) -> None:
        if cursor.take(4) != _MAGIC:
            raise BrokenCheckpointError(f"{self.path} is not a GGUF file")
        version = cursor.integer("I")
        if version not in _VERSIONS:
            raise UnsupportedModelError(f"{self.path}: GGUF version {version} (or byte order) is not supported, only 2 and 3")
        num_tensors = cursor.integer("Q")
        num_values = cursor.integer("Q")
        self.metadata: dict[str, object] = {}
        """Settings; arrays of numbers are lists, arrays of strings are left out."""
        for _ in range(num_values):
            key = cursor.string()
            value = self._value(cursor, cursor.integer("I"), key)
            if value is not None:
                self.metadata[key] = value
        described = [self._describe(cursor) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise BrokenCheckpointError(f"{self.path}: general.alignment is {alignment!r}; it must be a power of two")
        base = -(-cursor.at // alignment) * alignment
        self.tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in described:
            self.tensors[name] = self._place(name, shape, kind, base + offset)

    def _value(self, cursor: _Cursor, kind: int, key: str) -> object:
        if kind in _SCALARS:
            return cursor.scalars(_SCALARS[kind], 1)[0]
        if kind == _STRING:
            return cursor.string()
        if kind != _ARRAY:
            raise BrokenCheckpointError(f"{self.path}: {key!r} has an unknown type {kind}; the file is damaged or too new")
        item = cursor.integer("I")
        count = cursor.integer("Q")
        if item == _STRING:
            for _ in range(count):
                cursor.skip_string()
            return None
        if item not in _SCALARS:
            raise BrokenCheckpointError(f"{self.path}: {key!r} is an array of unknown type {item}")
        return cursor.scalars(_SCALARS[item], count)

    def _describe(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = cursor.string()
        num_dims = cursor.integer("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise BrokenCheckpointError(f"{self.path}: tensor {name!r} has {num_dims} dimensions; the file is damaged")
        shape = tuple(cursor.integer("Q") for _ in range(num_dims))[::-1]
        kind = cursor.integer("I")
        offset = cursor.integer("Q")
        try:
            return name, shape, GGMLQuantizationType(kind), offset
        except ValueError:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r} has a type ({kind}) that the gguf library doesn't know"
            ) from None

    def _place(self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, start: int) -> TensorInfo:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or shape[-1] % block:
            raise BrokenCheckpointError(f"{self.path}: tensor {name!r} of shape {shape} can't be of type {kind.name}")
        num_bytes = math.prod(shape) // block * block_bytes
        if start + num_bytes > self._data.size:
            raise BrokenCheckpointError(
                f"{self.path} is incomplete: tensor {name!r} ends at byte {start + num_bytes:,}, "
                f"the file at {self._data.size:,}; download it again"
            )
        return TensorInfo(name, shape, kind, start, num_bytes)


class _Cursor:
    """Reads little-endian values one after the other; raises struct.error or IndexError beyond the end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._size = len(data)
        self.at = 0

    def take(self, num_bytes: int) -> bytes:
        start, self.at = self.at, self.at + num_bytes
        if self.at > self._size:
            raise IndexError(f"byte {self.at:,} of {self._size:,}")
        return self._data[start : self.at].tobytes()

    def integer(self, code: str) -> int:
        return int(struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0])

    def scalars(self, code: str, count: int) -> list[object]:
        num_bytes = struct.calcsize("<" + code) * count
        if num_bytes > self._size:
            raise IndexError(f"an array of {count:,} in a file of {self._size:,} bytes")
        return list(struct.unpack(f"<{count}{code}", self.take(num_bytes)))

    def string(self) -> str:
        return self.take(self.integer("Q")).decode("utf-8")

    def skip_string(self) -> None:
        (length,) = struct.unpack_from("<Q", self._data, self.at)
        self.at += 8 + length
