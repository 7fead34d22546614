"""The ROUTER that clients reach over TCP: encrypted, and open to tenants' keys alone."""

from __future__ import annotations

import logging

import zmq

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.peers import CURVE_KEY_CHARS, remote_peer
from radixserve_tokenizer.wire import AddressError, ClientSocket

logger = logging.getLogger(__name__)

_MAX_CLIENT_FRAMES = 4  # of one connection that wait in memory each way; each may have 16 MiB, and who is there is a stranger
_ENCRYPTION_BYTES = 64  # at most, that CURVE adds to a frame
_HANDSHAKE_MS = 5_000
_HEARTBEAT_MS = 2_000
_HEARTBEAT_TIMEOUT_MS = 10_000
_BACKLOG = 256
_ROUTING_ID_BYTES = 5


class RemoteSocket(ClientSocket):
    """A `ClientSocket` whose clients prove by a CURVE key who they are. It needs a `ZapHandler` in the same context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, secret_key: str) -> None:
        """Raises `AddressError`."""
        self._secret_key = secret_key.encode()
        super().__init__(context, address)

    def _open(self, address: str) -> None:
        socket = self.socket
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        try:
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret_key)
        except zmq.ZMQError as error:
            raise AddressError("the server's secret key is not a CURVE key: make a pair with `radixserve keygen`") from error
        socket.setsockopt(zmq.ZAP_DOMAIN, b"radixserve")
        socket.setsockopt(zmq.RCVHWM, _MAX_CLIENT_FRAMES)
        socket.setsockopt(zmq.SNDHWM, _MAX_CLIENT_FRAMES)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME_BYTES + _ENCRYPTION_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        socket.setsockopt(zmq.IPV6, int("[" in address))
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            text = f"can't listen on {address}: {error.strerror}; give an IP address of this machine (or *) and a free port"
            raise AddressError(text) from error

    def _peer(self, routing_id: bytes, frame: zmq.Frame) -> bytes | None:
        key = _key_of(frame)
        if len(key) != CURVE_KEY_CHARS:
            logger.error("a frame of a connection without a key was dropped: the handshake should have refused it")
            return None
        if len(routing_id) != _ROUTING_ID_BYTES or routing_id[0]:
            self._turn_away(routing_id)
            return None
        return remote_peer(key, routing_id)

    def _turn_away(self, routing_id: bytes) -> None:
        """Names that clients choose could be guessed, and what is sent to one of that name be had by another."""
        goodbye: list[wire.Event] = [
            wire.Goodbye(epoch="", message="a client over TCP must not set a routing id of its own: leave it to the server")
        ]
        try:
            self.socket.send_multipart([routing_id, wire.encode(goodbye)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.debug("a client could not be turned away: %s", error)


def _key_of(frame: zmq.Frame) -> str:
    """The key by which the handshake let its connection in."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
