"""Tenants over real sockets, and in the real process."""

from __future__ import annotations

import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import TokenizerConfig
from tests.tokenizer.programs.harness import FakeRuntime
from tests.tokenizer.server.rig import PATIENCE_S, RawClient, RuntimeThread, eventually, rig
from tests.tokenizer.server.test_process import COMMAND, write_model
from tests.tokenizer.tenants.people import ask, key, tenant

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_storm_from_many_clients_is_answered_whole() -> None:
    people = tenant("a", tokens_per_minute=10**6), tenant("b", requests_per_minute=40)
    with rig(tenants=people, max_queued=4, max_queued_tokens=10**6) as it:
        it.runtime.runtime.hold = True
        clients = [it.client() for _ in range(20)]
        for client in clients:
            for number in range(10):
                client.send(*ask(number, "ab"[number % 2], "x" * 300))
        for client in clients:
            for number in range(10):
                client.wait(wire.Admitted | wire.Refused, program=number)  # type: ignore[arg-type]
        seen = [event for client in clients for event in client.seen]
        admitted = [event for event in seen if isinstance(event, wire.Admitted)]
        refused = [event for event in seen if isinstance(event, wire.Refused)]
        assert len(admitted) == 4
        assert len(refused) == 196
        assert {event.status for event in refused} <= {429, 503}
        assert all(event.retry_after_s > 0 for event in refused)
        it.runtime.runtime.hold = False
        eventually(lambda: len(it.runtime.runtime.requests) == 4)
        it.runtime.runtime.answer_all()
        for client in clients:
            for number in [event.program for event in client.seen if isinstance(event, wire.Admitted)]:
                assert client.wait(wire.Done, program=number).value == "ok"


class Engine:
    """The real process, which can be killed and started again, with a scripted runtime."""

    def __init__(self, folder: Path) -> None:
        write_model(folder)
        self.settings = TokenizerConfig(
            model=str(folder),
            model_name="tiny",
            socket=f"ipc://{folder / 'clients.sock'}",
            runtime_socket=f"ipc://{folder / 'runtime.sock'}",
            tenants=(tenant("a"), tenant("boss", admin=True)),
            usage_db=str(folder / "usage.db"),
            log_level="debug",
        )
        self.log = folder / "log"
        self.runtime = RuntimeThread(self.settings.runtime_socket, FakeRuntime())
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> RawClient:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stderr=log)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(self.settings))
        self.process.stdin.close()
        client = RawClient(self.settings.socket)
        client.greet()
        return client

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.kill()
        self.runtime.stop()


@pytest.fixture
def engine() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="rs-") as folder:
        it = Engine(Path(folder))
        try:
            yield it
        finally:
            it.close()


def requests_on_disk(engine: Engine) -> int:
    with closing(sqlite3.connect(engine.settings.usage_db)) as connection:
        row = connection.execute("SELECT requests FROM account WHERE tenant = 'a'").fetchone()
    return 0 if row is None else int(row[0])


def test_accounts_outlive_a_killed_process_and_keys_stay_out_of_the_log(engine: Engine) -> None:
    client = engine.start()
    client.send(*ask(1, "a"), wire.Open(program=2, api_key="a-wrong-key"))
    assert client.wait(wire.Done).value == "ok"
    assert client.wait(wire.Refused).status == 401
    eventually(lambda: requests_on_disk(engine) == 1)
    engine.kill()
    client.close()
    client = engine.start()
    client.send(wire.Query(id=1, kind="usage", body={"api_key": key("boss")}))
    assert client.wait(wire.Reply).body["tenants"]["a"]["requests"] == 1
    client.close()
    log = engine.log.read_text()
    assert "a-wrong-key" not in log
    assert key("a") not in log


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"usage_db": "/dev/null/usage.db"}, "can't be kept there"),
        ({"tenants": (tenant("a"), tenant("a"))}, "there twice"),
    ],
)
def test_settings_that_cant_be_used_end_it_at_once(engine: Engine, changes: dict[str, object], message: str) -> None:
    settings = msgspec.structs.replace(engine.settings, **changes)
    result = subprocess.run(COMMAND, input=msgspec.json.encode(settings), capture_output=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == 78
    assert message in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()
