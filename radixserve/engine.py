"""An engine on this machine: its processes and a client of them, as one context manager."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Self

from radixserve.config import ConfigError, ServeConfig, check_value
from radixserve.launcher.supervisor import EngineStartError, Supervisor
from radixserve_lang.client import Client
from radixserve_lang.errors import QueryFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from radixserve_tokenizer.protocol import ModelCard

__all__ = ["Engine", "EngineStartError"]

_OF_THE_HTTP_SERVER = frozenset(("host", "port", "allow_anonymous"))


class Engine:
    """Starts a runtime and a tokenizer process for `model` and serves programs until it is closed.

    `settings` are the flags of `radixserve serve` that concern the engine, with underscores: `dtype="float32"`,
    `kv_tokens=8192`, `tenants="tenants.toml"`, ... With tenants, programs that this engine runs are those of the tenant whose
    `api_key` is given. Raises `ConfigError` for a setting that is not known, `TenantsFileError` (a `ConfigError`),
    `ModelNotFoundError` when there is no such model, and `EngineStartError` when a process ends before it can serve.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        api_key: str = "",
        start_timeout_s: float = 300.0,
        say: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> None:
        for name in _OF_THE_HTTP_SERVER.intersection(settings):
            raise ConfigError(f"{name} is a setting of the HTTP server; an Engine listens to nobody (use `radixserve serve`)")
        checked = {
            name: check_value(name, os.fspath(value) if isinstance(value, os.PathLike) else value)
            for name, value in settings.items()
        }
        self._open(ServeConfig(model=model, **checked), api_key, start_timeout_s, say)

    @classmethod
    def from_config(
        cls,
        config: ServeConfig,
        *,
        api_key: str = "",
        start_timeout_s: float = 300.0,
        say: Callable[[str], None] | None = None,
    ) -> Self:
        """The same from a whole configuration."""
        engine = cls.__new__(cls)
        engine._open(config, api_key, start_timeout_s, say)
        return engine

    def _open(self, config: ServeConfig, api_key: str, timeout_s: float, say: Callable[[str], None] | None) -> None:
        self.config = config
        self._api_key = api_key
        self.supervisor = Supervisor(config, say=say)
        self._client: Client | None = None
        try:
            self.supervisor.start()
            self._client = self._connect(time.monotonic() + timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def client(self) -> Client:
        """The connection that programs run over."""
        if self._client is None:
            raise EngineStartError("the engine is closed")
        return self._client

    @property
    def model(self) -> ModelCard:
        """What is being served."""
        return self.client.welcome.model

    @property
    def url(self) -> str:
        """The address that `radixserve.connect` takes, for other processes of this user."""
        return self.supervisor.address

    def _connect(self, deadline: float) -> Client:
        """A client, once the model answers."""
        client = Client(self.url, api_key=self._api_key, name="engine")
        try:
            while (health := self._health(client, deadline))["status"] in ("loading", "runtime_down"):
                if health.get("message"):
                    raise EngineStartError(f"the runtime can't serve: {health['message']}")
                time.sleep(0.02)
        except BaseException:
            client.close()
            raise
        return client

    def _health(self, client: Client, deadline: float) -> dict[str, Any]:
        """What the engine says of itself; waits for it, and raises `EngineStartError` when it can't come any more."""
        answer = client.query("health")
        while True:
            self.supervisor.check()
            if time.monotonic() > deadline:
                raise EngineStartError("the engine did not become ready in time; raise start_timeout_s, or see the log above")
            try:
                return answer.result(timeout=0.1)
            except TimeoutError:
                continue
            except QueryFailedError:
                answer = client.query("health")

    def close(self) -> None:
        """End the client and the processes. Safe to call twice."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self.supervisor.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
