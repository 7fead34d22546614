"""Who may connect over TCP: ZeroMQ asks here for each CURVE handshake (ZAP, RFC 27), and the answer is the tenants' keys."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_FIELDS = 6  # before the credentials: version, request id, domain, address, identity, mechanism
_KEY_BYTES = 32
_MAX_A_TURN = 256
_LOG_S = 1.0


class ZapHandler:
    """Answers handshakes between the server's other work. What an accepted connection sends then bears its key as `User-Id`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], is_allowed: Callable[[str], bool]) -> None:
        """`is_allowed` takes a public key as text (Z85). Make it before any socket that needs it."""
        self._is_allowed = is_allowed
        self._num_refused = 0
        self._logged_at = float("-inf")
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)

    def answer(self) -> None:
        """Answer what has been asked, up to a number that keeps the loop turning."""
        for _ in range(_MAX_A_TURN):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if b"" not in parts:
                continue  # nobody waits for an answer to this
            end = parts.index(b"") + 1
            reply = self._reply(parts[end:])
            try:
                self.socket.send_multipart([*parts[:end], *reply], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                logger.debug("a handshake was given up while it was answered: %s", error)

    def close(self) -> None:
        """Close."""
        self.socket.close()

    def _reply(self, request: Sequence[bytes]) -> list[bytes]:
        request_id = request[1] if len(request) > 1 else b""
        key = _key_of(request)
        if key and self._is_allowed(key):
            return [_VERSION, request_id, b"200", b"OK", key.encode(), b""]
        self._refused(request)
        return [_VERSION, request_id, b"400", b"no tenant has this key", b"", b""]

    def _refused(self, request: Sequence[bytes]) -> None:
        """Logged once a second at most: whoever knocks must not fill the log."""
        self._num_refused += 1
        now = time.monotonic()
        if now - self._logged_at < _LOG_S:
            return
        address = request[3].decode("ascii", "replace") if len(request) > 3 else "?"
        logger.warning("a connection from %s was refused: no tenant has its key (%d refused so far)", address, self._num_refused)
        self._logged_at = now


def _key_of(request: Sequence[bytes]) -> str:
    """The client's public key; empty if the request is not of the one mechanism that is served."""
    if len(request) != _FIELDS + 1 or request[0] != _VERSION or request[5] != b"CURVE" or len(request[6]) != _KEY_BYTES:
        return ""
    return z85.encode(request[6]).decode()
