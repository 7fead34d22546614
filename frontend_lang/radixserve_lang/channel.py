"""One program on the wire: it counts the numbers and buffers the ops."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING

from radixserve_lang.errors import ClientClosedError
from radixserve_lang.frames import encode_message
from radixserve_tokenizer.protocol import Close, Credit, Open

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.client import Client
    from radixserve_lang.connection import Connection
    from radixserve_tokenizer.protocol import Event, FromClient, Priority

#: A buffer beyond either bound leaves at once.
MAX_BUFFERED_MESSAGES = 1024
MAX_BUFFERED_BYTES = 1 << 20


class Channel:
    """One program: allocates numbers, sends ops. Thread-safe.

    `on_event` is called on the I/O thread with Admitted/Refused/Delta/Done/Failed (and Goodbye when the server went
    away) and must not block. After a Goodbye what is sent goes nowhere: the event has said so.
    """

    program: int
    """The program's number, unique in its client."""

    def __init__(
        self,
        client: Client,
        connection: Connection,
        on_event: Callable[[Event], None],
        *,
        api_key: str,
        seed: int | None,
        priority: Priority,
        cache_salt: str,
        credits: int,
        group: str = "",
    ) -> None:
        self._client = client  # keeps the client open as long as the program is
        self._connection = connection
        self._ops = itertools.count()
        self._vars = itertools.count()
        self._next_branch = 1  # 0 is the root
        self._lock = threading.Lock()
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._due: float | None = None
        self._timer_set = False
        self._started = False
        self._closed = False
        self._peer = connection.register(on_event, is_program=True)
        self.program = self._peer.number
        first = Open(
            program=self.program,
            api_key=api_key,
            seed=seed,
            priority=priority,
            cache_salt=cache_salt,
            credits=credits,
            group=group,
        )
        try:
            self._put([encode_message(first)])  # no timer yet: it leaves with the first op
        except ValueError:
            connection.peers.remove(self.program)
            raise

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
        encoded = [encode_message(message) for message in messages]
        with self._lock:
            if self._closed:
                raise ClientClosedError("this program's channel is closed")
            self._put(encoded)
            if flush or self._buffered_bytes > MAX_BUFFERED_BYTES or len(self._buffer) > MAX_BUFFERED_MESSAGES:
                self._hand_over()
            elif self._due is None:
                self._due = time.monotonic() + self._connection.flush_after_s
                if not self._timer_set:
                    self._timer_set = True
                    self._connection.flush_at(self._due, self)

    def flush(self) -> None:
        """Send what is buffered."""
        with self._lock:
            self._hand_over()

    def grant(self, amount: int) -> None:
        """Take `amount` more deltas; sent at once."""
        self.send(Credit(program=self.program, amount=amount), flush=True)

    def close(self) -> None:
        """End the program. `on_event` is not called again, save for a call that is under way. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._started:
                self._put([encode_message(Close(program=self.program))])
                self._hand_over()
            self._buffer.clear()
        self._connection.peers.remove(self.program)

    def flush_due(self, now: float) -> None:
        """By the I/O thread, when a timer set by `send` is over. What was flushed since may have started a new wait."""
        with self._lock:
            if self._due is not None and self._due > now:
                self._connection.flush_at(self._due, self)
                return
            self._timer_set = False
            self._hand_over()

    def _put(self, encoded: list[bytes]) -> None:
        self._buffer += encoded
        self._buffered_bytes += sum(map(len, encoded))

    def _hand_over(self) -> None:
        # Under the lock, so that two flushes can't overtake one another.
        self._due = None
        if self._buffer and not self._peer.gone:
            self._connection.post(self._peer, self._buffer)
            self._started = True
        self._buffer = []
        self._buffered_bytes = 0
