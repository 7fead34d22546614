"""One DEALER socket from its connect to its loss. Used by the I/O thread alone."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from radixserve_lang.frames import encode_message, join_frame
from radixserve_tokenizer.protocol import PROTOCOL_VERSION, Hello, decode_events

if TYPE_CHECKING:
    from radixserve_lang.keys import CurveKeys
    from radixserve_lang.wakeup import Wakeup
    from radixserve_tokenizer.protocol import Event

#: Frames that ZMQ may hold in each direction; what is beyond waits here (out) or at the server (in), and nothing is dropped.
HIGH_WATER_MARK = 1000
#: Frames taken in one turn, so that sending keeps pace with a flood of events.
RECEIVE_AT_ONCE = 256
#: What the monitor tells: the connection broke, or the server turned this client's key away.
WATCHED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class Link:
    """Connects, greets, and moves frames without ever blocking but in `wait`."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], url: str, name: str, wakeup: Wakeup, keys: CurveKeys | None
    ) -> None:
        self.is_stranger = False
        """The server does not know this client's key."""
        self._unsent: deque[bytes] = deque()
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
        self._socket.set(zmq.LINGER, 0)
        if keys is not None:
            self._socket.set(zmq.CURVE_SERVERKEY, keys.server)
            self._socket.set(zmq.CURVE_PUBLICKEY, keys.public)
            self._socket.set(zmq.CURVE_SECRETKEY, keys.secret)
        self._monitor = self._socket.get_monitor_socket(WATCHED)
        self._poller = zmq.Poller()
        self._poller.register(wakeup, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._socket, zmq.POLLIN)
        self._socket.connect(url)
        self.send_frame(join_frame([encode_message(Hello(version=PROTOCOL_VERSION, client=name))]))

    @property
    def backlogged(self) -> bool:
        """Whether frames wait because the server does not take them."""
        return bool(self._unsent)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a frame, a wake-up, room to send, or the timeout; returns False when the connection is lost."""
        self._poller.modify(self._socket, zmq.POLLIN | zmq.POLLOUT if self._unsent else zmq.POLLIN)
        # Rounded up to whole milliseconds, or the last one would be spun away.
        ready = dict(self._poller.poll(math.ceil(timeout_s * 1000)))
        if self._monitor in ready:
            event = recv_monitor_message(self._monitor)["event"]
            self.is_stranger = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            return False
        return True

    def receive(self) -> list[Event]:
        """What has arrived; raises `MalformedFrameError`."""
        events: list[Event] = []
        for _ in range(RECEIVE_AT_ONCE):
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            events += decode_events(frame)
        return events

    def send_frame(self, frame: bytes) -> None:
        """Send or keep."""
        self._unsent.append(frame)
        self.retry()

    def retry(self) -> None:
        """Send what could not be sent before, in order."""
        while self._unsent:
            try:
                self._socket.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unsent.popleft()

    def close(self, linger_ms: int = 0) -> None:
        """Let what ZMQ holds leave for at most `linger_ms`."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
