"""Who waits for the server: open programs and unanswered queries, by number."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.tether import Tether
    from radixserve_tokenizer.protocol import Event, Goodbye

_log = logging.getLogger(__name__)


class Peer:
    """A program or a query. `sent`: something of it went over the present connection; `gone`: it has heard `Goodbye`."""

    __slots__ = ("gone", "is_program", "number", "on_event", "sent", "since", "tether")

    def __init__(self, number: int, on_event: Callable[[Event], None], *, is_program: bool) -> None:
        self.number = number
        self.is_program = is_program
        self.on_event = on_event
        self.since = time.monotonic()
        self.sent = False
        self.gone = False
        self.tether: Tether | None = None
        """Of a detached program: it outlives the connection."""

    def tell(self, event: Event) -> None:
        """Call the owner; its mistakes must not end the I/O thread."""
        try:
            self.on_event(event)
        except Exception:
            _log.exception("a handler of %s raised; this is a bug in the handler", type(event).__name__)


class Peers:
    """The table. Owners add and remove from any thread; the I/O thread tells."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[int, Peer] = {}

    def add(self, number: int, on_event: Callable[[Event], None], *, is_program: bool) -> Peer:
        """A new peer."""
        peer = Peer(number, on_event, is_program=is_program)
        with self._lock:
            self._peers[number] = peer
        return peer

    def remove(self, number: int) -> Peer | None:
        """Forget it; it hears nothing more."""
        with self._lock:
            return self._peers.pop(number, None)

    def tell(self, number: int, event: Event) -> None:
        """An event of a peer; one that is not (or no more) known missed it on purpose."""
        with self._lock:
            peer = self._peers.get(number)
        if peer is not None:
            peer.tell(event)

    def unsent_since(self) -> float | None:
        """When the longest waiting peer of which nothing was sent came; None without one."""
        with self._lock:
            return min((peer.since for peer in self._peers.values() if not peer.sent), default=None)

    def open_programs(self) -> list[Peer]:
        """Programs that the server knows of, and that end with this client."""
        with self._lock:
            return [peer for peer in self._peers.values() if peer.sent and peer.is_program and peer.tether is None]

    def tethered(self) -> list[tuple[Peer, Tether]]:
        """Detached programs that the server may know of."""
        with self._lock:
            return [(peer, peer.tether) for peer in self._peers.values() if peer.sent and peer.tether is not None]

    def lose(self, goodbye: Goodbye, *, which: Callable[[Peer], bool]) -> None:
        """Say goodbye to those peers and forget them."""
        with self._lock:
            lost = [peer for peer in self._peers.values() if which(peer)]
            for peer in lost:
                peer.gone = True
                del self._peers[peer.number]
        for peer in lost:
            peer.tell(goodbye)
