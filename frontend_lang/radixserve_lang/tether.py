"""What holds a detached program to its client when the connection breaks.

What has been sent is kept until an answer shows that it arrived. On a new connection the program is attached to again, and
what the server has not seen is sent again under its old numbers. A program of an earlier process is taken up in the same
way: it runs from its beginning, the ops that the server knows are not sent, and their values come as they are stored.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_lang.frames import encode_message
from radixserve_lang.heard import Heard
from radixserve_tokenizer.protocol import Admitted, Attach, Attached, Delta, Done, Failed, Goodbye, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.peers import Peer
    from radixserve_lang.transport import Transport
    from radixserve_tokenizer.protocol import Event, Open

#: Deltas that may come after a program was attached to, where its client wants any.
_CREDITS = 64


@dataclass(frozen=True, slots=True)
class Sent:
    """One encoded message of a program. `op` is its number, -1 for what is no op (cancel, drop)."""

    encoded: bytes
    op: int = -1
    has_value: bool = False


class Tether:
    """Stands between the channel of a detached program and the transport. Thread-safe."""

    def __init__(self, transport: Transport, on_event: Callable[[Event], None], *, resume: bool) -> None:
        """`resume`: the program may be there already, so it is looked for before it is opened."""
        self._transport = transport
        self._on_event = on_event
        self._lock = threading.Lock()
        self._log: deque[tuple[int, Sent]] = deque()  # each with the last op up to it
        self._last_op = -1
        self._unanswered: set[int] = set()
        self._known_below = 0  # ops that the server had when it was attached to
        self._heard = Heard()
        self._early: dict[int, Event] = {}  # stored outcomes of ops that this process has not come to yet
        self._is_opened = False
        self._is_closed = False
        self._is_admitted = False
        self._is_attached = not resume
        self._wants_deltas = False
        self._parted_at: float | None = None

    def bind(self, peer: Peer, opening: Open) -> None:
        """The program has its number. Sends `Attach` where the program may be there already."""
        self._peer = peer
        self._opening = opening
        self._wants_deltas = opening.credits > 0
        peer.tether = self
        if not self._is_attached:
            self._post([self._attach()])

    # ---- sending -------------------------------------------------------------------------------------------------

    def send(self, messages: list[Sent]) -> bool:
        """Send and keep. Returns whether `deliver` has something for these ops."""
        has_early = False
        with self._lock:
            fresh: list[bytes] = []
            for message in messages:
                self._last_op = max(self._last_op, message.op)
                has_early |= message.op in self._early
                if 0 <= message.op < self._known_below:
                    continue
                if message.has_value:
                    self._unanswered.add(message.op)
                self._log.append((self._last_op, message))
                fresh.append(message.encoded)
            if self._is_attached and fresh:
                self._post(fresh)
        return has_early

    def begin(self) -> None:
        """Before the first op: open the program, unless it is being looked for."""
        with self._lock:
            if self._is_attached and not self._is_opened:
                self._is_opened = True
                self._post([encode_message(self._opening)])

    def grant(self, credit: bytes) -> None:
        """Send credits. They are not kept: attaching gives new ones."""
        with self._lock:
            self._wants_deltas = True
            if self._is_attached:
                self._post([credit])

    def close(self, encoded: bytes) -> bool:
        """End the program with this `Close`. False: it can't be sent yet, so the program must stay known until it is."""
        with self._lock:
            self._is_closed = True
            self._log.clear()
            if self._is_attached:
                self._post([encoded])
                return True
            self._log.append((self._last_op, Sent(encoded)))
            return False

    # ---- the I/O thread ------------------------------------------------------------------------------------------

    def part(self) -> None:
        """The connection broke: hold everything back."""
        with self._lock:
            self._is_attached = False
            if self._parted_at is None:
                self._parted_at = time.monotonic()

    @property
    def is_parted(self) -> bool:
        """Whether the connection broke and the program was not taken up since."""
        return self._parted_at is not None

    def is_forgotten(self, now: float) -> bool:
        """Whether the server has ended the program by now."""
        return self._parted_at is not None and now - self._parted_at > self._opening.detached_ttl_s

    def come_back(self) -> None:
        """There is a connection again."""
        with self._lock:
            self._post([self._attach()])

    def deliver(self) -> None:
        """Tell what was stored of ops that have been sent by now."""
        with self._lock:
            due = [op for op in self._early if op <= self._last_op]
            events = [self._early.pop(op) for op in due]
        for event in events:
            self._on_event(event)

    def hear(self, event: Event) -> None:
        """Every event of the program comes through here."""
        if self._is_closed:
            self._hear_last(event)
            return
        match event:
            case Attached():
                self._attached(event)
            case Refused() if not self._is_attached:
                self._not_there(event)
            case Delta() if event.op > self._last_op:
                pass  # of an op that this process has not come to yet: `Done` has all of it
            case Delta():
                self._on_event(self._heard.cut(event))
            case Done() | Failed() if self._last_op < event.op < self._known_below:
                with self._lock:
                    self._early[event.op] = event
                self.deliver()  # it may have been sent just now
            case _:
                if self._early:
                    self.deliver()  # they are older
                if isinstance(event, Done | Failed):
                    self._arrived(event.op)
                self._is_admitted |= isinstance(event, Admitted)
                self._on_event(event)

    def _hear_last(self, event: Event) -> None:
        """The program was closed while there was no connection."""
        if isinstance(event, Attached | Refused | Goodbye):
            if isinstance(event, Attached):
                self._post([sent.encoded for _, sent in self._log])
            self._transport.peers.remove(self._peer.number)

    def _attached(self, event: Attached) -> None:
        self._heard.again()
        with self._lock:
            self._known_below = event.next_op
            # What is no op (a cancel, a drop) can be heard twice.
            self._is_opened = True
            self._log = deque((after, sent) for after, sent in self._log if sent.op < 0 or sent.op >= event.next_op)
            self._resume([])
        if not self._is_admitted:
            self._is_admitted = True
            self._on_event(Admitted(program=event.program))

    def _not_there(self, refused: Refused) -> None:
        if self._is_admitted:
            self._on_event(Goodbye(epoch="", message=f"the detached program can't be taken up again: {refused.message}"))
            return
        with self._lock:
            self._is_opened = True
            self._resume([encode_message(self._opening)])

    def _resume(self, first: list[bytes]) -> None:
        self._is_attached = True
        self._parted_at = None
        messages = first + [sent.encoded for _, sent in self._log]
        if messages:
            self._post(messages)

    def _arrived(self, op: int) -> None:
        """The server has op `op`, and so all that was sent before it."""
        self._heard.forget(op)
        with self._lock:
            self._unanswered.discard(op)
            while self._log and (self._log[0][0] < op or self._log[0][1].op == op):
                self._log.popleft()

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _attach(self) -> bytes:
        opening = self._opening
        message = Attach(
            program=opening.program,
            resume_key=opening.resume_key,
            api_key=opening.api_key,
            from_op=min(self._unanswered, default=self._last_op + 1),
            credits=_CREDITS if self._wants_deltas else 0,
        )
        return encode_message(message)

    def _post(self, messages: list[bytes]) -> None:
        if not self._peer.gone:
            self._transport.post(self._peer, messages)
