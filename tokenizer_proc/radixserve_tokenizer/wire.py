"""The two ZMQ sockets: clients on a ROUTER, the runtime on a DEALER. Nothing blocks, and nothing is dropped in silence."""

from __future__ import annotations

import logging
import os
import stat
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from radixserve_runtime.protocol import MAX_FRAME_BYTES as MAX_RUNTIME_FRAME_BYTES
from radixserve_tokenizer.backlog import Backlogs
from radixserve_tokenizer.peers import local_peer, routing_id_of
from radixserve_tokenizer.protocol import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_HIGH_WATER_MARK = 1000
_MAX_FRAMES_A_TURN = 512
_MAX_PARTS_A_TURN = 8192
_MAX_CLIENT_FRAMES = 64  # that wait in memory, at most MAX_FRAME_BYTES each, for the loop to take them
_LINGER_MS = 500
_RECONNECT_MS = 50


class AddressError(ValueError):
    """An address that can't be served; the text says what to give instead."""


class ClientSocket:
    """The ROUTER that clients connect to. Frames for a client that can't take them yet wait here, up to a bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._backlogs = Backlogs()
        self._is_amid_parts = False
        """The rest of a message of several parts has not been passed over."""
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, _MAX_CLIENT_FRAMES)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self.socket.setsockopt(zmq.LINGER, _LINGER_MS)
        try:
            self._open(address)
        except BaseException:
            self.socket.close(0)
            raise

    def _open(self, address: str) -> None:
        """Begin to listen. Raises `AddressError`."""
        _bind_privately(self.socket, address)

    @property
    def blocked(self) -> frozenset[bytes]:
        """Clients whose frames wait."""
        return self._backlogs.clients

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Pairs of identity and frame that are there, up to a number that keeps the loop turning."""
        for _ in range(_MAX_FRAMES_A_TURN):
            if self._is_amid_parts and not self._pass_over():
                return
            try:
                routing_id = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            frame = self.socket.recv(zmq.NOBLOCK, copy=False)  # what comes after its sender is there: messages come whole
            self._is_amid_parts = frame.more
            peer = self._peer(routing_id, frame)
            if peer is not None:
                # More than one frame is no message of ours; what is decoded then is empty and fails as malformed.
                yield peer, b"" if frame.more else frame.bytes

    def _peer(self, routing_id: bytes, frame: zmq.Frame) -> bytes | None:
        """As what the sender of a message is known; None: it is not to be heard."""
        return local_peer(routing_id)

    def _pass_over(self) -> bool:
        """Let go of the parts that a message has too many, one by one; False: there are more than this turn has time for."""
        for _ in range(_MAX_PARTS_A_TURN):
            if not self.socket.recv(zmq.NOBLOCK, copy=False).more:
                self._is_amid_parts = False
                return True
        return False

    def send(self, identity: bytes, frame: bytes) -> str:
        """Send or keep a frame. Returns why the client is lost, or nothing."""
        if identity not in self._backlogs:
            outcome = self._try(identity, frame)
            if outcome is not None:
                return outcome
        lost = self._backlogs.add(identity, frame)
        if lost:
            self.forget(identity)
        return lost

    def retry(self) -> list[tuple[bytes, str]]:
        """Try what waits again; returns the clients that turned out to be lost, and why."""
        lost: list[tuple[bytes, str]] = []
        for identity in self._backlogs.clients:
            while (frame := self._backlogs.first(identity)) is not None:
                outcome = self._try(identity, frame)
                if outcome is None:
                    break
                if outcome:
                    lost.append((identity, outcome))
                    self.forget(identity)
                else:
                    self._backlogs.sent(identity)
        return lost

    def forget(self, identity: bytes) -> None:
        """Drop what waits for a client."""
        self._backlogs.forget(identity)

    def close(self) -> None:
        """Close; frames under way have half a second."""
        self.socket.close()

    def _try(self, identity: bytes, frame: bytes) -> str | None:
        """ "" when sent, None when it would block, else why the client is lost."""
        try:
            self.socket.send_multipart([routing_id_of(identity), frame], zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            return "it has disconnected" if error.errno == zmq.EHOSTUNREACH else str(error)
        return ""


class RuntimeSocket:
    """The DEALER to the runtime. After a disconnection a new one is made: what the old one still held must reach nobody."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._context = context
        self._address = address
        self._waiting: deque[bytes] = deque()
        self._connect()

    def _connect(self) -> None:
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_RUNTIME_FRAME_BYTES)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)  # with nobody there sends say so, instead of piling up for whoever comes
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(self._address)

    def is_disconnected(self) -> bool:
        """Whether the connection broke since the last call."""
        broke = False
        while self.monitor.poll(0):
            broke |= recv_monitor_message(self.monitor)["event"] == zmq.EVENT_DISCONNECTED
        return broke

    def reconnect(self) -> None:
        """Start afresh."""
        self._waiting.clear()
        self._close()
        self._connect()

    def receive(self) -> Iterator[bytes]:
        """Frames that are there, up to a number that keeps the loop turning."""
        for _ in range(_MAX_FRAMES_A_TURN):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield parts[-1]

    def can_send(self) -> bool:
        """Whether somebody is connected and takes a frame."""
        return not self._waiting and bool(self.socket.poll(0, zmq.POLLOUT))

    def send(self, frame: bytes) -> None:
        """Send, or keep until the runtime takes it (or until `reconnect`)."""
        self._waiting.append(frame)
        self.retry()

    def retry(self) -> None:
        """Try what waits again."""
        while self._waiting:
            try:
                self.socket.send(self._waiting[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._waiting.popleft()

    @property
    def is_waiting(self) -> bool:
        """Whether frames wait."""
        return bool(self._waiting)

    def close(self) -> None:
        """Close at once."""
        self._close()

    def _close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)


def _bind_privately(socket: zmq.Socket[bytes], address: str) -> None:
    """Bind an ipc address that only this user reaches: the folder is the lock."""
    if not address.startswith("ipc://"):
        raise AddressError(f"{address!r} can't be served: give an ipc:// address (tcp:// is `listen`, which needs keys)")
    folder = Path(address.removeprefix("ipc://")).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise AddressError(f"{folder} is open to other users: choose a folder of mode 0700 for the socket")
    before = os.umask(0o077)
    try:
        socket.bind(address)
    finally:
        os.umask(before)
