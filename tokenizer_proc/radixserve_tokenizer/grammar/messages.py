"""What the grammar service and its worker say to each other: length-prefixed msgpack over a socket pair."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 64 << 20


class Start(msgspec.Struct, frozen=True, tag="start", tag_field="t"):
    """What the keeper reads first, from its standard input."""

    vocabulary: tuple[bytes, ...]
    eos_token_ids: tuple[int, ...]
    memory_mb: int


class Compile(msgspec.Struct, frozen=True, tag="compile", tag_field="t"):
    """One job. The worker does one at a time, in order."""

    job: int
    kind: str
    source: str
    tenant: str = ""
    """Whose it is: what was worked out for one tenant is forgotten before another's."""


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="t"):
    """The worker is ready for jobs."""

    pid: int


class Result(msgspec.Struct, frozen=True, tag="result", tag_field="t"):
    """End of a job: a payload, or an error."""

    job: int
    payload: bytes = b""
    error: str = ""
    is_last: bool = False
    """The worker ends now: a job that is sent to it would be lost."""


ToWorker: TypeAlias = Start | Compile
FromWorker: TypeAlias = Started | Result

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """One message with its length before it."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameError(ValueError):
    """The other side sent something that is no message."""


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are whole now; raises `FrameError` for one that is too long."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_MESSAGE_BYTES:
                raise FrameError(f"a message of {length} bytes")
            if len(self._buffer) < _LENGTH.size + length:
                return
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            yield body


def decode_to_worker(body: bytes) -> ToWorker:
    """Raises `FrameError`."""
    try:
        return _to_worker.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error


def decode_from_worker(body: bytes) -> FromWorker:
    """Raises `FrameError`."""
    try:
        return _from_worker.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(str(error)) from error
