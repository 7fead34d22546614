"""Where programs run: an engine that is already there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from radixserve_lang.client import Client
from radixserve_lang.defaults import URL_VARIABLE, default_api_key, default_client_keys, default_server_key, default_url
from radixserve_lang.errors import ConnectionFailedError
from radixserve_lang.keys import curve_keys

if TYPE_CHECKING:
    from os import PathLike
    from types import TracebackType
    from typing import Self

    from radixserve_tokenizer.protocol import ModelCard


class EngineLike(Protocol):
    """Anything with a client: what `connect` returns, and an `Engine` that started its own processes."""

    @property
    def client(self) -> Client:
        """The connection that programs run over."""
        ...


class RemoteEngine:
    """A running engine, reached by its address. Closing it ends the connection, not the engine."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def client(self) -> Client:
        """The connection that programs run over."""
        return self._client

    @property
    def model(self) -> ModelCard:
        """The model that it serves."""
        return self._client.welcome.model

    def close(self) -> None:
        """End the connection; programs that still run over it fail. A second call does nothing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def connect(
    url: str | None = None,
    api_key: str | None = None,
    *,
    timeout_s: float = 10.0,
    server_key: str | None = None,
    client_keys: str | PathLike[str] | None = None,
) -> RemoteEngine:
    """Connect to a running engine: `ipc://...` or `tcp://...`.

    Left out, the address is RADIXSERVE_URL and the key RADIXSERVE_API_KEY. Waits for the engine to answer; raises
    `ConnectionFailedError` after `timeout_s`. `tcp://` is encrypted: it needs the `server_key` (the server's public key, or
    a file of it; RADIXSERVE_SERVER_KEY) and `client_keys` (a file of this client's pair; RADIXSERVE_CLIENT_KEYS), both as
    `radixserve keygen` makes them.
    """
    address = url or default_url()
    if not address:
        raise ConnectionFailedError(f"no address of an engine: pass one, as in connect('ipc://...'), or set {URL_VARIABLE}")
    keys = curve_keys(
        address,
        default_server_key() if server_key is None else server_key,
        default_client_keys() if client_keys is None else client_keys,
    )
    key = default_api_key() if api_key is None else api_key
    client = Client(address, api_key=key, name="dsl", connect_timeout_s=timeout_s, keys=keys)
    try:
        _ = client.welcome
    except BaseException:
        client.close()
        raise
    return RemoteEngine(client)
