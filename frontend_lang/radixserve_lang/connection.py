"""The I/O thread: sending, hearing, heartbeats, and what to do when the server goes away.

User threads hand encoded messages over through a deque and a wake-up; nothing else crosses into this thread. A lost
connection (closed, silent, said goodbye, or of another epoch) ends what had been sent over it, save for detached programs:
those are taken up again. What had not left yet goes to the next connection, or hears `Goodbye` when there is none within
`connect_timeout_s`.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import zmq

from radixserve_lang.errors import ClientClosedError, ConnectionFailedError
from radixserve_lang.frames import HEADER_BYTES, encode_message, join_frame
from radixserve_lang.link import Link
from radixserve_lang.peers import Peer, Peers
from radixserve_lang.wakeup import Wakeup
from radixserve_tokenizer.protocol import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Close,
    Failed,
    Goodbye,
    MalformedFrameError,
    Ping,
    Pong,
    Reply,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.channel import Channel
    from radixserve_lang.keys import CurveKeys
    from radixserve_tokenizer.protocol import Event

_log = logging.getLogger(__name__)

#: From a loss to the next attempt.
RETRY_S = 0.1
#: How often waiting is looked at while there is no server.
TICK_S = 0.1
#: Before a server has said how often it wants to hear, and how long it may be silent: pings are answered without a greeting.
UNGREETED_PING_S, UNGREETED_SILENCE_S = 1.0, 10.0
#: How long `close` lets the last messages leave.
LINGER_MS = 200


class Connection:
    """What a client and its channels share. `start` starts the thread; `close` ends and joins it."""

    def __init__(
        self, url: str, *, name: str, connect_timeout_s: float, flush_after_s: float, keys: CurveKeys | None = None
    ) -> None:
        self.url = url
        self._keys = keys
        self._epoch = ""
        self.peers = Peers()
        self._name = name
        self._connect_timeout_s = connect_timeout_s
        self.flush_after_s = flush_after_s
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._outbox: deque[tuple[Peer, list[bytes]]] = deque()
        self._timers: deque[tuple[float, Channel]] = deque()
        self._wakeup = Wakeup()
        self._changed = threading.Condition()  # guards the three below
        self._welcome: Welcome | None = None
        self._refusal = ""
        self._stopping = False
        # From here on the I/O thread's own.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._link: Link | None = None
        self._connect_at = 0.0
        self._ping_at = 0.0
        self._unanswered_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"radixserve-client-{name or 'io'}", daemon=True)

    # ---- any thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def welcome(self) -> Welcome:
        """The greeting of the present connection; waits for it and raises `ConnectionFailedError`."""
        deadline = time.monotonic() + self._connect_timeout_s
        with self._changed:
            while self._welcome is None:
                self.check_usable()
                if self._refusal:
                    raise ConnectionFailedError(f"the server at {self.url} refused this client: {self._refusal}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ConnectionFailedError(self._no_answer())
                self._changed.wait(left)
            return self._welcome

    def check_usable(self) -> None:
        """Raise `ClientClosedError` when closed or forked."""
        if os.getpid() != self._pid:
            raise ClientClosedError("this client was made before a fork; make a new one in the child process")
        if self._stopping:
            raise ClientClosedError("this client is closed; make a new one")

    def register(self, on_event: Callable[[Event], None], *, is_program: bool) -> Peer:
        """A new program or query; raises `ClientClosedError`."""
        self.check_usable()
        peer = self.peers.add(next(self._numbers), on_event, is_program=is_program)
        if self._stopping:  # closed in between: the table may have been emptied before this came
            self.peers.remove(peer.number)
            self.check_usable()
        return peer

    def post(self, peer: Peer, messages: list[bytes]) -> None:
        """Hand encoded messages over."""
        self._outbox.append((peer, messages))
        self._wakeup.wake()

    def flush_at(self, due: float, channel: Channel) -> None:
        """Have `channel.flush_due` called at `due`."""
        self._timers.append((due, channel))
        self._wakeup.wake()

    def close(self) -> None:
        """Say goodbye to everyone and join the thread. Nothing happens in a forked child or a second time."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._wakeup.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ---- the I/O thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self._farewell()
        except Exception:
            _log.exception("the I/O thread of the client for %s failed; this is a bug", self.url)
        finally:
            self._stopping = True
            if self._link is not None:
                self._link.close(LINGER_MS)
            self.peers.lose(Goodbye(epoch="", message="the client was closed"), which=lambda peer: True)
            self._context.term()
            self._wakeup.close()

    def _turn(self) -> None:
        link = self._link
        if link is None:
            link = self._reconnect()
        alive = link.wait(self._sleep_s())
        self._wakeup.drain()
        try:
            for event in link.receive():
                self._handle(event)
                if self._link is not link:
                    return
        except MalformedFrameError as error:
            self._lose(f"the server sent a frame that is not of this protocol: {error}")
            return
        if not alive:
            self._break(link)
            return
        self._check_timers()
        if self._link is link:
            self._send(link)

    def _reconnect(self) -> Link:
        delay = self._connect_at - time.monotonic()
        if delay > 0:
            time.sleep(delay)  # at most RETRY_S
        self._unanswered_since = None
        self._ping_at = time.monotonic() + UNGREETED_PING_S
        self._link = Link(self._context, self.url, self._name, self._wakeup, self._keys)
        return self._link

    def _break(self, link: Link) -> None:
        if link.is_stranger:
            self._lose("it does not know this client's key; have the server's operator add the public one", refused=True)
        else:
            self._lose("the connection to the server was lost; it may have crashed or been stopped")

    def _sleep_s(self) -> float:
        """Until the next thing to do by the clock."""
        now = time.monotonic()
        wait = self._ping_at - now
        if self._welcome is None:
            wait = min(wait, TICK_S)
        if self._timers:
            wait = min(wait, self._timers[0][0] - now)
        return max(0.0, wait)

    def _handle(self, event: Event) -> None:
        self._unanswered_since = None
        match event:
            case Welcome():
                self._greet(event)
            case Goodbye():
                self._lose(event.message or "the server ended the connection", refused=self._welcome is None)
            case Pong():
                if self._welcome is not None and event.epoch != self._welcome.epoch:
                    self._lose("the server was restarted")
            case Reply():
                peer = self.peers.remove(event.id)
                if peer is not None:
                    peer.tell(event)
            case Failed() if event.program < 0:
                # Nothing says whose message it was: no program of this connection can be trusted to end.
                self._lose(f"the server could not use a frame of this client: {event.message}")
            case _:
                self.peers.tell(event.program, event)

    def _greet(self, welcome: Welcome) -> None:
        if welcome.version != PROTOCOL_VERSION:
            self._lose(f"it speaks version {welcome.version} of the protocol, this client {PROTOCOL_VERSION}", refused=True)
            return
        with self._changed:
            self._welcome = welcome
            self._refusal = ""
            self._changed.notify_all()
        self._ping_at = time.monotonic() + welcome.heartbeat_s
        if welcome.epoch != self._epoch and self._epoch:
            goodbye = Goodbye(epoch=self._epoch, message=f"the server was restarted, and its programs are gone ({self.url})")
            self.peers.lose(goodbye, which=lambda peer: peer.tether is not None and peer.tether.is_parted)
        self._epoch = welcome.epoch
        for _, tether in self.peers.tethered():
            if tether.is_parted:
                tether.come_back()

    def _check_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._timers.popleft()[1].flush_due(now)
        if self._welcome is None:
            gone = Goodbye(epoch=self._epoch, message=f"the connection to {self.url} did not come back in the program's TTL")
            self.peers.lose(gone, which=lambda peer: peer.tether is not None and peer.tether.is_forgotten(now))
        self._heartbeat(now)
        if self._welcome is not None:
            return
        waiting_since = self.peers.unsent_since()
        if waiting_since is not None and now - waiting_since > self._connect_timeout_s:
            late = now - self._connect_timeout_s
            goodbye = Goodbye(epoch="", message=self._no_answer())
            self.peers.lose(goodbye, which=lambda peer: not peer.sent and peer.since < late)

    def _heartbeat(self, now: float) -> None:
        welcome = self._welcome
        silence_s = UNGREETED_SILENCE_S if welcome is None else welcome.client_timeout_s
        # Measured from a ping that was not answered: time in which this process itself was stopped does not count.
        if self._unanswered_since is not None and now - self._unanswered_since > silence_s:
            self._lose(f"the server has been silent for {silence_s:g} s")
        elif now >= self._ping_at and self._link is not None:
            self._ping_at = now + (UNGREETED_PING_S if welcome is None else welcome.heartbeat_s)
            if self._unanswered_since is None:
                self._unanswered_since = now
            if not self._link.backlogged:
                self._link.send_frame(join_frame([encode_message(Ping())]))

    def _send(self, link: Link) -> None:
        link.retry()
        while self._welcome is not None and self._outbox and not link.backlogged:
            if messages := self._next_messages():
                link.send_frame(join_frame(messages))

    def _next_messages(self) -> list[bytes]:
        """As much of the outbox as one frame holds. What was flushed together stays together unless it is larger than that."""
        messages: list[bytes] = []
        room = MAX_FRAME_BYTES - HEADER_BYTES
        while self._outbox:
            peer, waiting = self._outbox[0]
            if peer.gone:
                self._outbox.popleft()
                continue
            size = sum(map(len, waiting))
            if size > room:
                if not messages:
                    messages = self._split(waiting, room)
                    peer.sent = True
                break
            self._outbox.popleft()
            messages += waiting
            room -= size
            peer.sent = True
        return messages

    def _split(self, waiting: list[bytes], room: int) -> list[bytes]:
        """Cut off what fits; the rest stays at the head of the outbox."""
        count = 0
        while room >= len(waiting[count]):
            room -= len(waiting[count])
            count += 1
        head = waiting[:count]
        del waiting[:count]
        return head

    def _lose(self, message: str, *, refused: bool = False) -> None:
        """The connection is over: end what was sent over it, and connect again. Refused: end also what was still to be sent."""
        with self._changed:
            epoch = "" if self._welcome is None else self._welcome.epoch
            self._welcome = None
            self._refusal = message if refused else ""
            self._changed.notify_all()
        if self._link is not None:
            self._link.close()
            self._link = None
        self._connect_at = time.monotonic() + RETRY_S
        if not refused:
            for _, tether in self.peers.tethered():
                tether.part()
        for peer, waiting in list(self._outbox):
            if peer.tether is not None and peer.tether.is_parted:
                waiting.clear()  # what was in it is kept by the tether
            else:
                # Closed programs are in no table any more, but their last words may be here.
                peer.gone = peer.gone or peer.sent
        goodbye = Goodbye(epoch=epoch, message=f"{message} ({self.url})")
        self.peers.lose(goodbye, which=lambda peer: refused or (peer.sent and peer.tether is None))
        _log.info("connection to %s: %s", self.url, message)

    def _farewell(self) -> None:
        """Closing: end the programs so that the server need not wait for the silence."""
        if self._link is None or self._welcome is None:
            return
        self._send(self._link)
        closes = [encode_message(Close(program=peer.number)) for peer in self.peers.open_programs()]
        if closes and not self._link.backlogged:
            self._link.send_frame(join_frame(closes))

    def _no_answer(self) -> str:
        key = "" if self._keys is None else ", and is server_key its public key"
        return f"no server answered at {self.url} within {self._connect_timeout_s:g} s; is it running{key}?"
