"""Frames that have come in and messages that have not been handled: each client in turn, so that none can hold up the others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from radixserve_tokenizer.peers import curve_key_of, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve_tokenizer.protocol import FromClient

_MESSAGES_A_TURN = 64
_MAX_BYTES = 64 << 20  # of local clients, and of those over TCP


class _Waiting:
    """What one client has sent."""

    __slots__ = ("frames", "messages", "num_bytes")

    def __init__(self) -> None:
        self.num_bytes = 0
        """Of `frames`."""
        self.frames: deque[bytes] = deque()
        self.messages: deque[FromClient] = deque()


class Inbox:
    """A queue a client. A frame is decoded when it is its turn: decoded it may be much larger."""

    def __init__(self, decode: Callable[[bytes, bytes], list[FromClient]]) -> None:
        """`decode` takes (identity, frame)."""
        self._decode = decode
        self._clients: OrderedDict[bytes, _Waiting] = OrderedDict()
        self._num_bytes = {False: 0, True: 0}
        """By whether their clients are remote."""

    def __bool__(self) -> bool:
        return bool(self._clients)

    def is_full(self, *, remote: bool) -> bool:
        """Whether frames had better stay where they are. What comes over TCP never keeps local clients' frames out."""
        return self._num_bytes[remote] > _MAX_BYTES

    def hog(self) -> bytes | None:
        """Of the tenant's key by which more than half of the room for remote clients is taken, the connection with most; None: nobody's."""
        by_key: dict[str, int] = {}
        for identity, waiting in self._clients.items():
            if (key := curve_key_of(identity)) is not None:
                by_key[key] = by_key.get(key, 0) + waiting.num_bytes
        most = max(by_key, key=by_key.__getitem__, default=None)
        if most is None or by_key[most] <= _MAX_BYTES // 2:
            return None
        return max(
            (identity for identity in self._clients if curve_key_of(identity) == most),
            key=lambda identity: self._clients[identity].num_bytes,
        )

    def put(self, identity: bytes, frame: bytes) -> None:
        """A frame has come in."""
        waiting = self._clients.get(identity)
        if waiting is None:
            waiting = self._clients[identity] = _Waiting()
        waiting.frames.append(frame)
        self._count(identity, waiting, len(frame))

    def take(self) -> Iterator[tuple[bytes, FromClient]]:
        """Messages with their senders, in each sender's order; stop whenever you like, the rest is kept."""
        while self._clients:
            identity, waiting = next(iter(self._clients.items()))
            self._clients.move_to_end(identity)
            for _ in range(_MESSAGES_A_TURN):
                if not waiting.messages:
                    if not waiting.frames:
                        break
                    frame = waiting.frames.popleft()
                    self._count(identity, waiting, -len(frame))
                    waiting.messages.extend(self._decode(identity, frame))
                else:
                    yield identity, waiting.messages.popleft()
            if not waiting.messages and not waiting.frames:
                del self._clients[identity]

    def is_between_frames(self, identity: bytes) -> bool:
        """Whether no frame of this client is half taken."""
        waiting = self._clients.get(identity)
        return waiting is None or not waiting.messages

    def forget(self, identity: bytes) -> None:
        """The client is gone, and what it had sent with it."""
        waiting = self._clients.pop(identity, None)
        if waiting is not None:
            self._count(identity, waiting, -waiting.num_bytes)
            waiting.frames.clear()
            waiting.messages.clear()

    def _count(self, identity: bytes, waiting: _Waiting, num_bytes: int) -> None:
        waiting.num_bytes += num_bytes
        self._num_bytes[is_remote(identity)] += num_bytes
