"""What the routes share: the settings, the client once it is connected, the metrics. Hung on `app.state.radixserve`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from radixserve.http.agent_programs import AgentPrograms
from radixserve.http.crossing import Crossing
from radixserve.http.errors import ApiError, ModelNotFoundError, UnavailableError
from radixserve.http.metrics import Metrics
from radixserve.http.responses_api.store import ResponseStore
from radixserve_lang.errors import QueryFailedError, RadixServeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import Request

    from radixserve.http.bridge import ClientLike, QueryKind
    from radixserve.http.config import HttpConfig
    from radixserve_tokenizer.protocol import ModelCard

log = logging.getLogger("radixserve.http")

DEFAULT_ALIAS = "default"


class ServerState:
    """One app's state. The client is connected in the background: an app that is served before its engine is there answers
    /health (with "loading") meanwhile. `radixserve serve` starts the engine first; who connects before it is there waits.
    """

    def __init__(self, client: ClientLike | Callable[[], ClientLike], config: HttpConfig) -> None:
        self.config = config
        self.metrics = Metrics()
        self.agents = AgentPrograms(config)
        self.responses = ResponseStore(config)
        self._source = client
        self._client: ClientLike | None = None
        self._owned = False
        self._card: ModelCard | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._crossing: Crossing | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._crossing = Crossing()
        self._connecting = asyncio.create_task(self._connect())

    async def connected(self) -> None:
        """Wait until the engine has greeted the client."""
        if self._connecting is not None:
            await asyncio.shield(self._connecting)

    async def stop(self) -> None:
        """Stop connecting, close what is kept for programs, and the client if it was made here."""
        self.agents.close()
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        if self._client is not None and self._owned:
            await asyncio.to_thread(self._client.close)

    @property
    def client(self) -> ClientLike:
        """The client; raises `UnavailableError` as long as the engine has not greeted it."""
        if self._client is None or self._card is None:
            raise UnavailableError("The engine is still loading the model. Try again.", code="loading")
        return self._client

    @property
    def crossing(self) -> Crossing:
        """How events get into the loop that the app runs in."""
        if self._crossing is None:
            raise UnavailableError("The server is not running yet. Try again.", code="loading")
        return self._crossing

    @property
    def card(self) -> ModelCard:
        """The model; raises `UnavailableError` as long as it is not known."""
        if self._card is None:
            raise UnavailableError("The engine is still loading the model. Try again.", code="loading")
        return self._card

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names that `model` may have; the first is the one that is shown."""
        return self.config.served_names or (self.card.name, DEFAULT_ALIAS)

    def check_model(self, name: str | None) -> str:
        """The name to answer with; raises `ModelNotFoundError`. No name means the model that is served."""
        names = self.served_names
        if name is None:
            return names[0]
        if name not in names:
            raise ModelNotFoundError(name, names)
        return name

    async def query(self, kind: QueryKind, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the engine something that is no program; raises `ApiError`, at the latest after the query timeout."""
        client = self._client
        if client is None:
            raise UnavailableError("The engine is not connected yet. Try again.", code="loading")
        try:
            return await asyncio.wait_for(asyncio.wrap_future(client.query(kind, body or {})), self.config.query_timeout_s)
        except TimeoutError:
            raise UnavailableError("The engine did not answer in time.", code="engine_timeout") from None
        except QueryFailedError as error:
            raise ApiError(error.message, status=error.status if 400 <= error.status <= 599 else 500) from error
        except RadixServeError as error:
            raise UnavailableError(f"The engine can't be reached: {error}", code="connection_lost") from error

    async def _connect(self) -> None:
        while True:
            try:
                client = self._client
                if client is None:
                    client = await self._make()
                    self._client = client
                welcome = await asyncio.to_thread(_greeting, client)
            except Exception as error:  # whatever a factory may raise: without a client there is nothing to serve
                log.warning("no engine yet, trying again: %s: %s", type(error).__name__, error)
                await asyncio.sleep(self.config.connect_retry_s)
                continue
            self._card = welcome
            self.metrics.model_name = self.served_names[0]
            return

    async def _make(self) -> ClientLike:
        if callable(self._source):
            self._owned = True
            return await asyncio.to_thread(self._source)
        return self._source


def _greeting(client: ClientLike) -> ModelCard:
    return client.welcome.model


def state_of(request: Request) -> ServerState:
    """The app's state."""
    state: ServerState = request.app.state.radixserve
    return state
