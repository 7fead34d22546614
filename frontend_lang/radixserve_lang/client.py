"""The low-level client: what the DSL and the HTTP server stand on."""

from __future__ import annotations

import concurrent.futures
import weakref
from typing import TYPE_CHECKING, Any

from radixserve_lang.channel import Channel
from radixserve_lang.connection import Connection
from radixserve_lang.errors import QueryFailedError
from radixserve_lang.frames import encode_message
from radixserve_tokenizer.protocol import Goodbye, Query, Reply

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Literal, Self

    from radixserve_tokenizer.protocol import Event, Priority, Welcome

    QueryKind = Literal["health", "stats", "reset_cache", "tokenize", "detokenize", "usage"]


class Client:
    """One connection to a tokenizer process: one DEALER, one I/O thread. Thread-safe.

    It connects in the background and, after a loss, again. Programs of a lost connection end with `Goodbye`; new ones
    work as soon as the server is back. After `os.fork` the child needs a client of its own.
    """

    def __init__(
        self, url: str, *, api_key: str = "", name: str = "", connect_timeout_s: float = 10.0, flush_after_s: float = 0.002
    ) -> None:
        """`url` is a ZMQ address (`ipc://...`, `tcp://...`); `api_key` the default of `open`; `name` is for the server's log.

        Ops that nothing flushes leave `flush_after_s` after the first of them.
        """
        self._api_key = api_key
        self._connection = Connection(url, name=name, connect_timeout_s=connect_timeout_s, flush_after_s=flush_after_s)
        # The thread knows the connection, not this object: a client that is forgotten, or the interpreter's end, closes it.
        self._finalizer = weakref.finalize(self, Connection.close, self._connection)
        self._connection.start()

    @property
    def url(self) -> str:
        """The server's address."""
        return self._connection.url

    @property
    def welcome(self) -> Welcome:
        """The server's greeting (model, epoch, limits). Waits until connected; raises `ConnectionFailedError` after `connect_timeout_s`."""
        return self._connection.welcome()

    def open(
        self,
        on_event: Callable[[Event], None],
        *,
        api_key: str | None = None,
        seed: int | None = None,
        priority: Priority = "standard",
        cache_salt: str = "",
        credits: int = 64,
        group: str = "",
    ) -> Channel:
        """Start a program and return its channel at once.

        The `Open` travels with the first flush. `on_event` hears, on the I/O thread, `Admitted` or `Refused`, then
        `Delta`, `Done` and `Failed`, and one `Goodbye` when the server went away (also when none answered within
        `connect_timeout_s`), after which the channel is silent. It must not block. Deltas use up `credits`; `Channel.grant` gives more. Programs of
        one `group` are one program to the scheduler.
        """
        return Channel(
            self,
            self._connection,
            on_event,
            api_key=self._api_key if api_key is None else api_key,
            seed=seed,
            priority=priority,
            cache_salt=cache_salt,
            credits=credits,
            group=group,
        )

    def query(self, kind: QueryKind, body: dict[str, Any] | None = None) -> concurrent.futures.Future[dict[str, Any]]:
        """Ask something that is no program. The future raises `QueryFailedError` (status, message) on error; status 503 means no server."""
        future: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def answered(event: Event) -> None:
            match event:
                case Reply(error=""):
                    future.set_result(event.body)
                case Reply():
                    future.set_exception(QueryFailedError(event.status, event.error))
                case Goodbye():
                    future.set_exception(QueryFailedError(503, event.message))
                case _:
                    raise TypeError(f"a query is not answered by {type(event).__name__}")

        peer = self._connection.register(answered, is_program=False)
        try:
            message = encode_message(Query(id=peer.number, kind=kind, body=body or {}))
        except ValueError:
            self._connection.peers.remove(peer.number)
            raise
        self._connection.post(peer, [message])
        return future

    def close(self) -> None:
        """End open programs (their readers hear `Goodbye`), leave, and join the I/O thread. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
