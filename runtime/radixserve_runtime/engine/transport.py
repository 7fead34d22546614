"""The runtime's socket, in a thread of its own: heartbeats go out and cancels come in while a step runs long.

The engine's thread never touches ZMQ. It takes decoded messages from `receive` and hands frames to `send`; a socket
pair wakes the thread. Nothing is dropped in silence: a frame that the peer can't take yet waits here, and the engine is
told to hold (`congested`) while too many wait; a peer that is gone is reported as `PeerLost`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, TypeAlias

import zmq

from radixserve_runtime.protocol import (
    MAX_FRAME_BYTES,
    Failed,
    FromRuntime,
    Heartbeat,
    Hello,
    MalformedFrameError,
    Ping,
    ToRuntime,
    decode_to_runtime,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.protocol import Stats

logger = logging.getLogger(__name__)

_HIGH_WATER_MARK = 4096
_CONGESTED_FRAMES = 256


class PeerLost:
    """The tokenizer process is gone or silent: whatever it asked for has no reader."""


Incoming: TypeAlias = "ToRuntime | PeerLost"


class Transport:
    """One ROUTER bound at `address`, one peer at a time: the last that said `Hello`."""

    def __init__(self, address: str, *, stats: Callable[[], Stats], heartbeat_s: float, peer_timeout_s: float) -> None:
        self._address = address
        self._stats = stats
        self._heartbeat_s = heartbeat_s
        self._peer_timeout_s = peer_timeout_s
        self._incoming: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._outgoing: collections.deque[bytes] = collections.deque()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._closing = threading.Event()
        self._bound = threading.Event()
        self._peer: bytes | None = None
        self._last_heard = 0.0
        self._thread = threading.Thread(target=self._run, name="radixserve-runtime-io", daemon=True)

    @property
    def congested(self) -> bool:
        """Whether so many frames wait for the peer that the engine should not make more."""
        return len(self._outgoing) > _CONGESTED_FRAMES

    def start(self) -> None:
        """Bind and begin; returns when the address is bound. Raises `zmq.ZMQError` if it can't be."""
        self._thread.start()
        self._bound.wait()
        if not self._thread.is_alive() and not self._closing.is_set():
            raise zmq.ZMQError(zmq.EADDRINUSE)

    def send(self, messages: list[FromRuntime]) -> None:
        """Queue one frame."""
        if messages:
            self._outgoing.append(encode(messages))
            self.wake()

    def receive(self, timeout_s: float | None) -> list[Incoming]:
        """Everything that has come in; waits up to `timeout_s` (None: for ever, 0: not at all) for the first."""
        messages: list[Incoming] = []
        with contextlib.suppress(queue.Empty):
            if timeout_s != 0:
                messages.append(self._incoming.get(timeout=timeout_s))
            while True:
                messages.append(self._incoming.get_nowait())
        return messages

    def wake(self) -> None:
        """Make the thread look at its queue."""
        with contextlib.suppress(BlockingIOError):
            self._wake_write.send(b"\0")

    def close(self) -> None:
        """Send what waits (briefly) and end the thread."""
        self._closing.set()
        self.wake()
        self._thread.join(timeout=2.0)

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        try:
            router.setsockopt(zmq.LINGER, 200)
            router.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
            router.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            router.setsockopt(zmq.ROUTER_HANDOVER, 1)
            router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
            try:
                router.bind(self._address)
            finally:
                self._bound.set()
            self._loop(router)
        finally:
            router.close()
            context.term()

    def _loop(self, router: zmq.Socket[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        next_beat = time.monotonic()
        while not (self._closing.is_set() and not self._outgoing):
            # With frames waiting on a full peer, look again soon: POLLOUT of a ROUTER says nothing about one peer.
            wait_s = 0.005 if self._outgoing else max(0.0, next_beat - time.monotonic())
            poller.poll(int(wait_s * 1000) + 1)
            with contextlib.suppress(BlockingIOError):
                self._wake_read.recv(4096)
            self._take_in(router)
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + self._heartbeat_s
                self._beat(now)
            self._send_out(router)
            if self._closing.is_set() and self._peer is None:
                return

    def _take_in(self, router: zmq.Socket[bytes]) -> None:
        while True:
            try:
                parts = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            identity, frame = parts[0], parts[-1]
            try:
                messages = decode_to_runtime(frame)
            except MalformedFrameError as error:
                self._refuse(router, identity, "malformed", str(error))
                continue
            for message in messages:
                self._take(router, identity, message)

    def _take(self, router: zmq.Socket[bytes], identity: bytes, message: ToRuntime) -> None:
        if isinstance(message, Hello):
            if identity != self._peer:
                self._outgoing.clear()
            self._peer = identity
        elif identity != self._peer:
            self._refuse(router, identity, "no_hello", "say hello first: this connection is not the one being served")
            return
        self._last_heard = time.monotonic()
        if not isinstance(message, Ping):
            self._incoming.put(message)

    @staticmethod
    def _refuse(router: zmq.Socket[bytes], identity: bytes, code: str, text: str) -> None:
        reply: list[FromRuntime] = [Failed(request_id=-1, code=code, message=text)]
        try:
            router.send_multipart([identity, encode(reply)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.warning("could not answer a bad frame (%s): %s", text, error)

    def _beat(self, now: float) -> None:
        if self._peer is None:
            return
        if now - self._last_heard > self._peer_timeout_s:
            self._lose_peer(f"silent for {self._peer_timeout_s:g} s")
        elif not self._outgoing:
            beat: list[FromRuntime] = [Heartbeat(stats=self._stats())]
            self._outgoing.append(encode(beat))

    def _send_out(self, router: zmq.Socket[bytes]) -> None:
        while self._outgoing:
            if self._peer is None:
                self._outgoing.clear()
                return
            try:
                router.send_multipart([self._peer, self._outgoing[0]], zmq.NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                self._lose_peer(str(error))
                return
            self._outgoing.popleft()

    def _lose_peer(self, why: str) -> None:
        logger.info("the tokenizer process is gone (%s)", why)
        self._peer = None
        self._outgoing.clear()
        self._incoming.put(PeerLost())
