"""A fake server, its address, and clients that are closed in the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_lang.client import Client
from tests.lang.fake_server import Engine, FakeServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def url() -> Iterator[str]:
    # Not tmp_path: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="rs-") as folder:
        yield f"ipc://{Path(folder) / 's'}"


@pytest.fixture
def start_server(url: str) -> Iterator[Callable[..., FakeServer]]:
    servers: list[FakeServer] = []

    def start(**settings: Any) -> FakeServer:
        servers.append(FakeServer(url, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def server(start_server: Callable[..., FakeServer]) -> FakeServer:
    return start_server()


@pytest.fixture
def start_client(url: str) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def start(**settings: Any) -> Client:
        # Timed flushes are off unless a test is about them, so that frames do not depend on the machine's speed.
        clients.append(Client(url, **{"flush_after_s": 60.0, "connect_timeout_s": 5.0, **settings}))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def client(server: FakeServer, start_client: Callable[..., Client]) -> Client:
    return start_client()


@pytest.fixture
def engine(client: Client) -> Engine:
    return Engine(client)
