"""One program on the wire: it counts the numbers and buffers the ops."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from radixserve_lang.errors import ClientClosedError
from radixserve_lang.frames import encode_message
from radixserve_lang.tether import Sent, Tether
from radixserve_tokenizer.protocol import Close, Credit, Gen, Open, Score, Select

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.client import Client
    from radixserve_lang.transport import Transport
    from radixserve_tokenizer.protocol import Event, FromClient

#: A buffer beyond either bound leaves at once.
MAX_BUFFERED_MESSAGES = 1024
MAX_BUFFERED_BYTES = 1 << 20


class Channel:
    """One program: allocates numbers, sends ops. Thread-safe.

    `on_event` is called on the I/O thread with Admitted/Refused/Delta/Done/Failed/LeaseLost (and Goodbye when the server went
    away) and must not block. After a Goodbye what is sent goes nowhere: the event has said so.
    """

    program: int
    """The program's number, unique in its client."""

    def __init__(
        self, client: Client, transport: Transport, on_event: Callable[[Event], None], opening: Open, *, resume: bool = False
    ) -> None:
        """`opening` says all but the program's number. Where it is detached the channel survives a lost connection;
        with `resume` it first looks for a program that is there already."""
        self.client = client
        """Stays open as long as the program is."""
        self._transport = transport
        self._ops = itertools.count()
        self._vars = itertools.count()
        self._next_branch = 1  # 0 is the root
        self._lock = threading.Lock()
        self._buffer: list[Sent] = []
        self._buffered_bytes = 0
        self._due: float | None = None
        self._timer_set = False
        self._started = resume  # whether the server may know of it
        self._closed = False
        self._tether = Tether(transport, on_event, resume=resume) if opening.detached_ttl_s > 0 else None
        self._peer = transport.register(on_event if self._tether is None else self._tether.hear, is_program=True)
        self.program = self._peer.number
        first = msgspec.structs.replace(opening, program=self.program)
        try:
            encoded = encode_message(first)
        except ValueError:
            transport.peers.remove(self.program)
            raise
        if self._tether is None:
            self._put([Sent(encoded)])  # no timer yet: it leaves with the first op
        else:
            self._tether.bind(self._peer, first)

    def next_op(self) -> int:
        """A new op number."""
        return next(self._ops)

    def next_var(self) -> int:
        """A new variable number."""
        return next(self._vars)

    def next_branches(self, count: int) -> int:
        """The first of `count` consecutive new branch numbers."""
        with self._lock:
            first = self._next_branch
            self._next_branch += count
        return first

    def send(self, *messages: FromClient, flush: bool = False) -> None:
        """Buffer messages; they leave together on a flush, when the buffer is large, or about 2 ms after its first message.

        Raises ValueError for what can't be encoded (then nothing of this call is sent) and `ClientClosedError` after `close`.
        """
        encoded = [_sent(message) for message in messages]
        with self._lock:
            if self._closed:
                raise ClientClosedError("this program's channel is closed")
            self._put(encoded)
            if flush or self._buffered_bytes > MAX_BUFFERED_BYTES or len(self._buffer) > MAX_BUFFERED_MESSAGES:
                self._hand_over()
            elif self._due is None:
                self._due = time.monotonic() + self._transport.flush_after_s
                if not self._timer_set:
                    self._timer_set = True
                    self._transport.flush_at(self._due, self)

    def flush(self) -> None:
        """Send what is buffered."""
        with self._lock:
            self._hand_over()

    def grant(self, amount: int) -> None:
        """Take `amount` more deltas; sent at once."""
        credit = Credit(program=self.program, amount=amount)
        if self._tether is None:
            self.send(credit, flush=True)
        else:
            self.flush()
            self._tether.grant(encode_message(credit))

    def close(self) -> None:
        """End the program. `on_event` is not called again, save for a call that is under way. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._started:
                close = _sent(Close(program=self.program))
                if self._tether is None:
                    self._put([close])
                    self._hand_over()
                elif not self._peer.gone and not self._tether.close(close.encoded):
                    return  # it is taken up once more, to be closed
            self._buffer.clear()
        self._transport.peers.remove(self.program)

    def flush_due(self, now: float) -> None:
        """By the I/O thread, when a timer set by `send` is over. What was flushed since may have started a new wait."""
        if self._tether is not None:
            self._tether.deliver()
        with self._lock:
            if self._due is not None and self._due > now:
                self._transport.flush_at(self._due, self)
                return
            self._timer_set = False
            self._hand_over()

    def _put(self, messages: list[Sent]) -> None:
        self._buffer += messages
        self._buffered_bytes += sum(len(message.encoded) for message in messages)

    def _hand_over(self) -> None:
        # Under the lock, so that two flushes can't overtake one another.
        self._due = None
        messages, self._buffer = self._buffer, []
        self._buffered_bytes = 0
        if self._peer.gone:
            return
        if self._tether is not None:
            self._started = True
            self._tether.begin()
            if self._tether.send(messages):
                self._transport.flush_at(time.monotonic(), self)  # the I/O thread tells what is known of them
        elif messages:
            self._started = True
            self._transport.post(self._peer, [message.encoded for message in messages])


def _sent(message: FromClient) -> Sent:
    encoded = encode_message(message)
    return Sent(encoded, getattr(message, "op", -1), isinstance(message, Gen | Select | Score))
