"""Frames that have come in and messages that have not been handled: each client in turn, so that none can hold up the others."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve_tokenizer.protocol import FromClient

_MESSAGES_A_TURN = 64
_MAX_BYTES = 64 << 20


class _Waiting:
    """What one client has sent."""

    __slots__ = ("frames", "messages")

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.messages: deque[FromClient] = deque()


class Inbox:
    """A queue a client. A frame is decoded when it is its turn: decoded it may be much larger."""

    def __init__(self, decode: Callable[[bytes, bytes], list[FromClient]]) -> None:
        """`decode` takes (identity, frame)."""
        self._decode = decode
        self._clients: OrderedDict[bytes, _Waiting] = OrderedDict()
        self._num_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._clients)

    @property
    def is_full(self) -> bool:
        """Whether frames had better stay where they are."""
        return self._num_bytes > _MAX_BYTES

    def put(self, identity: bytes, frame: bytes) -> None:
        """A frame has come in."""
        waiting = self._clients.get(identity)
        if waiting is None:
            waiting = self._clients[identity] = _Waiting()
        waiting.frames.append(frame)
        self._num_bytes += len(frame)

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
                    self._num_bytes -= len(frame)
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
            self._num_bytes -= sum(map(len, waiting.frames))
            waiting.frames.clear()
            waiting.messages.clear()
