"""Frames for clients that can't take them yet: bounded for each connection, and over TCP for all that show one key."""

from __future__ import annotations

from collections import deque

from radixserve_tokenizer.peers import curve_key_of

#: Of one connection.
MAX_BYTES = 32 << 20
#: Of all connections with one CURVE key.
MAX_BYTES_OF_KEY = 64 << 20


class Backlogs:
    """A queue for each client that has one."""

    def __init__(self) -> None:
        self._frames: dict[bytes, deque[bytes]] = {}
        self._num_bytes: dict[bytes, int] = {}
        self._of_key: dict[str, int] = {}

    @property
    def clients(self) -> frozenset[bytes]:
        """Those for whom frames wait."""
        return frozenset(self._frames) if self._frames else frozenset()

    def __contains__(self, identity: bytes) -> bool:
        return identity in self._frames

    def add(self, identity: bytes, frame: bytes) -> str:
        """Keep a frame. Returns why its client must be given up, or nothing."""
        key = curve_key_of(identity)
        if self._num_bytes.get(identity, 0) + len(frame) > MAX_BYTES:
            return f"it does not read: more than {MAX_BYTES >> 20} MiB wait for it"
        if key is not None and self._of_key.get(key, 0) + len(frame) > MAX_BYTES_OF_KEY:
            return f"it does not read, nor do others with its key: more than {MAX_BYTES_OF_KEY >> 20} MiB wait for them"
        self._frames.setdefault(identity, deque()).append(frame)
        self._count(identity, len(frame))
        return ""

    def first(self, identity: bytes) -> bytes | None:
        """The frame whose turn it is; None: there is none."""
        frames = self._frames.get(identity)
        return frames[0] if frames else None

    def sent(self, identity: bytes) -> None:
        """The first frame has left."""
        frames = self._frames[identity]
        self._count(identity, -len(frames.popleft()))
        if not frames:
            self.forget(identity)

    def forget(self, identity: bytes) -> None:
        """The client is gone, or has no frames any more."""
        if self._frames.pop(identity, None) is not None:
            self._count(identity, -self._num_bytes[identity])
            del self._num_bytes[identity]

    def _count(self, identity: bytes, num_bytes: int) -> None:
        self._num_bytes[identity] = self._num_bytes.get(identity, 0) + num_bytes
        key = curve_key_of(identity)
        if key is not None:
            self._of_key[key] = self._of_key.get(key, 0) + num_bytes
            if not self._of_key[key]:
                del self._of_key[key]
