"""The loop: take in what is there, let the core work, send one frame to the runtime and one to each client."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

import zmq

from radixserve_runtime import protocol as runtime
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.doors import Doors
from radixserve_tokenizer.inbox import Inbox
from radixserve_tokenizer.programs.core import Core
from radixserve_tokenizer.wire import RuntimeSocket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve_tokenizer.config import TokenizerConfig
    from radixserve_tokenizer.programs.grammars import Compiler
    from radixserve_tokenizer.programs.transcript import TextModel

logger = logging.getLogger(__name__)

_IDLE_MS = 100
_IMPATIENT_MS = 10
_TURN_S = 0.05


class Server:
    """Moves frames between the sockets and the core. One thread, no waiting but in `poll`."""

    def __init__(self, config: TokenizerConfig, text: TextModel, compiler: Compiler, compiler_fd: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._core = Core(config, text, compiler, clock=time.monotonic)
        self._clients = Doors(self._context, config, self._core.is_allowed)
        self._runtime = RuntimeSocket(self._context, config.runtime_socket)
        self._inbox = Inbox(self._decode)
        self._compiler_fd = compiler_fd
        self._hello_frame = b""
        self._is_stopping = False
        self._poller = zmq.Poller()
        self._clients.watch(self._poller)
        self._poller.register(compiler_fd, zmq.POLLIN)
        self._watch_runtime()

    def stop(self) -> None:
        """Make `run` say goodbye and return; safe to call from a signal handler."""
        self._is_stopping = True

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while not self._is_stopping:
                self._turn()
            self._core.goodbye("the server is shutting down")
            self._send_to_clients()
        finally:
            self._core.close()
            self._clients.close()
            self._runtime.close()
            self._context.term()

    def _turn(self) -> None:
        ready = dict(self._poller.poll(self._patience_ms()))
        if self._runtime.is_disconnected():
            self._reconnect()
        self._take_from_runtime()
        self._take_from_clients()
        self._core.tick(compiler_has_answers=self._compiler_fd in ready)
        self._send_to_runtime()
        self._send_to_clients()

    def _patience_ms(self) -> int:
        if self._inbox or self._core.is_behind:
            return 0
        waits = self._clients.blocked or self._runtime.is_waiting or not self._core.link.is_ready
        patience_ms = _IMPATIENT_MS if waits else _IDLE_MS
        due = self._core.deltas_due(self._clients.blocked)
        if due is None:
            return patience_ms
        return max(0, min(patience_ms, math.ceil(1e3 * (due - time.monotonic()))))

    # ---- clients --------------------------------------------------------------------------------------------------

    def _take_from_clients(self) -> None:
        """Take in what is there, and handle messages for a while; long ones and many of one client must not stop the loop."""
        for identity, frame in self._clients.receive(lambda remote: self._inbox.is_full(remote=remote)):
            self._core.heard(identity)
            self._inbox.put(identity, frame)
        while self._inbox.is_full(remote=True) and (hog := self._inbox.hog()) is not None:
            self._drop(hog, "it sends more than can be handled, and others wait")
        ends = time.monotonic() + _TURN_S
        for identity, message in self._inbox.take():
            self._core.handle(identity, message)
            if self._inbox.is_between_frames(identity):
                self._core.frame_ended(identity)
            if time.monotonic() > ends:
                return

    def _decode(self, identity: bytes, frame: bytes) -> list[wire.FromClient]:
        try:
            return wire.decode_from_client(frame)
        except wire.MalformedFrameError as error:
            self._core.malformed(identity, str(error))
        except Exception as error:  # whatever a decoder can trip over, the process goes on
            logger.exception("a frame of %d bytes could not be decoded", len(frame))
            self._core.malformed(identity, type(error).__name__)
        return []

    def _send_to_clients(self) -> None:
        for identity, why in self._clients.retry():
            self._drop(identity, why)
        for identity, events in self._core.flush(self._clients.blocked):
            for frame in frames(events):
                lost = self._clients.send(identity, frame)
                if lost:
                    self._drop(identity, lost)
                    break
        for identity in self._clients.blocked:
            if not self._core.knows(identity):
                self._clients.forget(identity)

    def _drop(self, identity: bytes, why: str) -> None:
        self._inbox.forget(identity)
        self._core.drop_client(identity, why)

    # ---- the runtime ----------------------------------------------------------------------------------------------

    def _watch_runtime(self) -> None:
        self._poller.register(self._runtime.socket, zmq.POLLIN)
        self._poller.register(self._runtime.monitor, zmq.POLLIN)

    def _reconnect(self) -> None:
        self._poller.unregister(self._runtime.socket)
        self._poller.unregister(self._runtime.monitor)
        self._runtime.reconnect()
        self._watch_runtime()
        self._core.on_disconnected()

    def _take_from_runtime(self) -> None:
        for frame in self._runtime.receive():
            try:
                events = runtime.decode_from_runtime(frame)
            except runtime.MalformedFrameError:
                logger.exception("the runtime sent a frame that can't be read")
                continue
            for event in events:
                self._core.on_runtime(event)

    def _send_to_runtime(self) -> None:
        link = self._core.link
        self._runtime.retry()
        if not link.is_ready:
            now = time.monotonic()
            hello = link.hello_due(now)
            if hello is not None and self._runtime.can_send():
                greeting: list[runtime.ToRuntime] = [hello]
                self._hello_frame = self._hello_frame or runtime.encode(greeting)
                self._runtime.send(self._hello_frame)
                link.hello_sent(now)
            return
        outgoing = link.take_outgoing()
        if outgoing:
            self._runtime.send(runtime.encode(outgoing))


def frames(events: list[wire.Event]) -> Iterator[bytes]:
    """As few frames as their bound allows. One event alone may be beyond it, which is its client's to bear."""
    frame = _encode(events)
    if len(frame) <= wire.MAX_FRAME_BYTES or len(events) == 1:
        yield frame
        return
    middle = len(events) // 2
    yield from frames(events[:middle])
    yield from frames(events[middle:])


def _encode(events: list[wire.Event]) -> bytes:
    """One frame. An event that can't be encoded is a bug of ours: its reader is told so, and the others go out."""
    try:
        return wire.encode(events)
    except Exception:
        logger.exception("an event could not be encoded")
    sound: list[wire.Event] = []
    for event in events:
        try:
            wire.encode([event])
        except Exception:
            program, op, var = (getattr(event, name, -1) for name in ("program", "op", "var"))
            event = wire.Failed(program=program, op=op, var=var, code="internal", message="the answer could not be encoded")
        sound.append(event)
    return wire.encode(sound)
