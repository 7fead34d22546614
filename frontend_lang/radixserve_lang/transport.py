"""What a client stands on: the connection to a server, or what stands in for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.channel import Channel
    from radixserve_lang.peers import Peer, Peers
    from radixserve_tokenizer.protocol import Event, Welcome


class Transport(Protocol):
    """Takes encoded messages from any thread and tells peers what comes, on one thread of its own."""

    @property
    def url(self) -> str:
        """Where the server is."""
        ...

    @property
    def peers(self) -> Peers:
        """Open programs and unanswered queries."""
        ...

    @property
    def flush_after_s(self) -> float:
        """Ops that nothing flushes leave so long after the first of them."""
        ...

    def start(self) -> None:
        """Start its thread."""
        ...

    def welcome(self) -> Welcome:
        """The server's greeting; waits for it and raises `ConnectionFailedError`."""
        ...

    def register(self, on_event: Callable[[Event], None], *, is_program: bool) -> Peer:
        """A new program or query; raises `ClientClosedError`."""
        ...

    def post(self, peer: Peer, messages: list[bytes]) -> None:
        """Hand encoded messages over; in order for each peer."""
        ...

    def flush_at(self, due: float, channel: Channel) -> None:
        """Have `channel.flush_due` called when `time.monotonic()` is `due`."""
        ...

    def close(self) -> None:
        """Say goodbye to every peer and join the thread. A second call does nothing."""
        ...
