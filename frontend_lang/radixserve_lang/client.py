"""The low-level client: what the DSL and the HTTP server stand on."""

from __future__ import annotations

import concurrent.futures
import secrets
import weakref
from typing import TYPE_CHECKING, Any

from radixserve_lang.channel import Channel
from radixserve_lang.connection import Connection
from radixserve_lang.errors import QueryFailedError
from radixserve_lang.frames import encode_message
from radixserve_tokenizer.protocol import Goodbye, Open, Query, Reply

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Literal, Self

    from radixserve_lang.keys import CurveKeys
    from radixserve_lang.transport import Transport
    from radixserve_tokenizer.protocol import Budget, Event, Priority, Welcome

    QueryKind = Literal["health", "stats", "reset_cache", "tokenize", "detokenize", "usage", "tenant"]


class Client:
    """One connection to a tokenizer process: one DEALER, one I/O thread. Thread-safe.

    It connects in the background and, after a loss, again. Programs of a lost connection end with `Goodbye`; new ones
    work as soon as the server is back. After `os.fork` the child needs a client of its own.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        name: str = "",
        connect_timeout_s: float = 10.0,
        flush_after_s: float = 0.002,
        keys: CurveKeys | None = None,
    ) -> None:
        """`url` is a ZMQ address (`ipc://...`, `tcp://...`); `api_key` the default of `open`; `name` is for the server's log.

        Ops that nothing flushes leave `flush_after_s` after the first of them. `keys` are for an address of `tcp://`.
        """
        self._begin(
            Connection(url, name=name, connect_timeout_s=connect_timeout_s, flush_after_s=flush_after_s, keys=keys), api_key
        )

    @classmethod
    def over(cls, transport: Transport, *, api_key: str = "") -> Self:
        """A client of something that stands in for a server."""
        client = cls.__new__(cls)
        client._begin(transport, api_key)
        return client

    def _begin(self, transport: Transport, api_key: str) -> None:
        self._api_key = api_key
        self.transport = transport
        """What carries its messages."""
        # The thread knows the transport, not this object: a client that is forgotten, or the interpreter's end, closes it.
        self._finalizer = weakref.finalize(self, transport.close)
        transport.start()

    @property
    def api_key(self) -> str:
        """What programs are opened with that name none."""
        return self._api_key

    @property
    def url(self) -> str:
        """The server's address."""
        return self.transport.url

    @property
    def welcome(self) -> Welcome:
        """The server's greeting (model, epoch, limits). Waits until connected; raises `ConnectionFailedError` after `connect_timeout_s`."""
        return self.transport.welcome()

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
        budget: Budget | None = None,
        detached_ttl_s: float = 0.0,
        resume_key: str = "",
    ) -> Channel:
        """Start a program and return its channel at once.

        The `Open` travels with the first flush. `on_event` hears, on the I/O thread, `Admitted` or `Refused`, then
        `Delta`, `Done`, `Failed` and `LeaseLost`, and one `Goodbye` when the server went away (also when none answered within
        `connect_timeout_s`), after which the channel is silent. It must not block. Deltas use up `credits`; `Channel.grant`
        gives more. Programs of one `group` are one program to the scheduler.

        With `detached_ttl_s` the program outlives a lost connection by that long: the channel takes it up again by itself,
        and hears `Goodbye` only if it can't. A `resume_key` (a secret of 16 to 128 characters) takes up the program that was
        opened with it, by this process or another, and opens it if there is none; left out, a random one is used.
        """
        opening = Open(
            program=0,
            api_key=self._api_key if api_key is None else api_key,
            seed=seed,
            priority=priority,
            cache_salt=cache_salt,
            credits=credits,
            group=group,
            budget=budget,
            detached_ttl_s=detached_ttl_s,
            resume_key=resume_key or (secrets.token_urlsafe(24) if detached_ttl_s > 0 else ""),
        )
        return Channel(self, self.transport, on_event, opening, resume=bool(resume_key))

    def query(
        self, kind: QueryKind, body: dict[str, Any] | None = None, *, api_key: str | None = None
    ) -> concurrent.futures.Future[dict[str, Any]]:
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

        peer = self.transport.register(answered, is_program=False)
        try:
            message = encode_message(
                Query(id=peer.number, kind=kind, body=body or {}, api_key=self._api_key if api_key is None else api_key)
            )
        except ValueError:
            self.transport.peers.remove(peer.number)
            raise
        self.transport.post(peer, [message])
        return future

    def close(self) -> None:
        """End open programs (their readers hear `Goodbye`), leave, and join the I/O thread. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
