"""The DSL and a foreign client over tcp://, with keys as the operator makes them, through a line that is cut."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import radixserve as rs
from radixserve.cli import main
from radixserve.keys import read_pair
from tests.integration.conftest import free_port
from tests.integration.foreign_client import ForeignClient, Ops
from tests.support.line import Line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def typed(*arguments: str) -> str:
    """What an operator types, and what comes of it."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


class Remote:
    """An engine that listens, and the keys of one tenant."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.port = free_port()
        self.tenants = str(folder / "tenants.toml")
        self.server_key = typed("keygen", str(folder / "server.keys"))
        typed("tenant", "add", "search", "--file", self.tenants)
        self.client_keys = folder / "search.keys"
        typed("keygen", str(self.client_keys), "--tenant", "search", "--file", self.tenants)
        self.stranger = folder / "stranger.keys"
        typed("keygen", str(self.stranger))
        settings: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "log_level": "error"}
        self.engine = rs.Engine(
            str(model),
            listen=f"tcp://127.0.0.1:{self.port}",
            server_keys=str(folder / "server.keys"),
            tenants=self.tenants,
            usage_db=":memory:",
            **settings,
        )
        self.line = Line(self.port)

    def connect(self, port: int, keys: Path | None = None, **more: Any) -> rs.RemoteEngine:
        """As another machine would."""
        url = f"tcp://127.0.0.1:{port}"
        return rs.connect(url, server_key=self.server_key, client_keys=keys or self.client_keys, **more)


@pytest.fixture(scope="module")
def remote(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    made = Remote(tmp_path_factory.mktemp("tcp"), tiny_model)
    yield made
    made.line.close()
    made.engine.close()


@rs.function
def chat(s: rs.State, turns: int, max_tokens: int = 150) -> list[str]:
    found: list[str] = []
    for i in range(turns):
        s += rs.user(f"Turn {i}")
        found.append(s.gen(max_tokens=max_tokens, ignore_eos=True).value)
    return found


def test_programs_of_a_tenant_by_its_key(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    with remote.connect(remote.port) as engine:
        first = chat.run(2, 8, engine=engine, seed=1).value
        assert engine.client.query("usage").result(10)["tenants"].keys() == {"search"}
        with pytest.raises(rs.QueryFailedError, match="admins"):
            engine.client.query("stats").result(10)
    monkeypatch.setenv("RADIXSERVE_URL", f"tcp://127.0.0.1:{remote.port}")
    monkeypatch.setenv("RADIXSERVE_SERVER_KEY", remote.server_key)
    monkeypatch.setenv("RADIXSERVE_CLIENT_KEYS", str(remote.client_keys))
    assert chat.run(2, 8, seed=1).value == first


def test_a_key_that_no_tenant_has(remote: Remote) -> None:
    with pytest.raises(rs.ConnectionFailedError, match="does not know this client's key"):
        remote.connect(remote.port, remote.stranger)


def test_a_detached_run_survives_a_cut_line(remote: Remote) -> None:
    with remote.connect(remote.port) as engine:
        expected = chat.run(6, engine=engine, seed=2).value
    stop = threading.Event()

    def cutter() -> None:
        while not stop.wait(0.3):
            remote.line.cut()

    with remote.connect(remote.line.port) as engine:
        thread = threading.Thread(target=cutter)
        thread.start()
        try:
            assert chat.using(detached_ttl_s=60.0).run(6, engine=engine, seed=2).value == expected
        finally:
            stop.set()
            thread.join()
    assert remote.line.num_connections > 1


def test_without_a_ttl_a_cut_line_ends_the_run(remote: Remote) -> None:
    with remote.connect(remote.line.port) as engine:
        cutter = threading.Timer(0.3, remote.line.cut)
        cutter.start()
        with pytest.raises(rs.ServerGoneError, match="connection to the server was lost"):
            chat.run(20, engine=engine)
        cutter.join()
        assert chat.run(1, 4, engine=engine, seed=3).value  # the client has connected again


def test_a_foreign_client(remote: Remote) -> None:
    pair = read_pair(remote.client_keys)
    with ForeignClient(f"tcp://127.0.0.1:{remote.port}", keys=(remote.server_key, pair.public, pair.secret)) as client:
        client.hello()
        ops = Ops(1)
        client.send(ops.open(), ops.say("Hello?"), ops.gen())
        assert client.wait("done", program=1)["usage"]["output_tokens"] == 8
        client.send(ops.close(), Ops(2).open(api_key="of nobody"))
        assert client.wait("refused", program=2)["status"] == 401
