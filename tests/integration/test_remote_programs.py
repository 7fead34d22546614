"""Programs over tcp:// through the real processes, by a client of pyzmq and the protocol alone."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import radixserve as rs
from radixserve.cli import main
from radixserve.keys import read_pair
from radixserve_tokenizer import protocol as wire
from tests.integration.conftest import free_port
from tests.tokenizer.programs.harness import append, gen
from tests.tokenizer.server.rig import Curve, RawClient, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = "a secret of the client"
GONE_S = 12.0


class Machine:
    """An engine that listens, and what its operator types."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.server_public = self.type("keygen", str(folder / "server.keys"))
        self.api_key = self.type("tenant", "add", "search", "--file", self.tenants)
        settings: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "log_level": "warning"}
        self.engine = rs.Engine(
            str(model),
            listen=self.url,
            server_keys=str(folder / "server.keys"),
            tenants=self.tenants,
            usage_db=":memory:",
            **settings,
        )
        self._clients: list[RawClient] = []

    @property
    def tenants(self) -> str:
        return str(self.folder / "tenants.toml")

    def type(self, *arguments: str) -> str:
        result = CliRunner().invoke(main, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    def keys(self, name: str, tenant: str) -> Curve:
        """A new pair for a client of this tenant."""
        file = self.folder / f"{name}.keys"
        self.type("keygen", str(file), "--tenant", tenant, "--file", self.tenants)
        pair = read_pair(file)
        return Curve(self.server_public.encode(), pair.public.encode(), pair.secret.encode())

    def client(self, curve: Curve) -> RawClient:
        """Connected, as soon as the engine knows the key; ZeroMQ itself does not knock a second time where it was refused."""
        while True:
            client = RawClient(self.url, curve=curve)
            client.send(wire.Hello(version=1))
            if client.socket.poll(1000):
                self._clients.append(client)
                client.wait(wire.Welcome)
                return client
            client.close()

    def stats(self) -> dict[str, Any]:
        return self.engine.client.query("stats").result(timeout=10)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.engine.close()


@pytest.fixture(scope="module")
def machine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    it = Machine(tmp_path_factory.mktemp("remote"), tiny_model)
    yield it
    it.close()


def test_a_program_over_tcp(machine: Machine) -> None:
    client = machine.client(machine.keys("first", "search"))  # written while the engine runs
    client.send(
        wire.Open(program=1, seed=1, budget=wire.Budget(tokens=5)),
        append(0, "Once upon a time", role="user"),
        gen(1, max_tokens=3, ignore_eos=True, stream=True),
        wire.Gen(program=1, op=2, branch=0, var=2, sampling=wire.Sampling(ignore_eos=True), where="story.py:7"),
    )
    assert client.wait(wire.Done).usage.output_tokens == 3
    failed = client.wait(wire.Failed)
    assert failed.code == "budget_exhausted"
    assert "story.py:7" in failed.message
    assert failed.partial
    client.send(wire.Query(id=1, kind="usage"), wire.Query(id=2, kind="stats"))
    usage = client.wait(wire.Reply, id=1).body["tenants"]
    assert usage["search"]["output_tokens"] == 5, "not one token beyond the budget is drawn"
    assert client.wait(wire.Reply, id=2).status == 403


def test_a_detached_program_is_taken_up_from_elsewhere(machine: Machine) -> None:
    curve = machine.keys("second", "search")
    first = machine.client(curve)
    first.send(
        wire.Open(program=1, seed=5, detached_ttl_s=60, resume_key=KEY),
        append(0, "Once upon a time"),
        gen(1, max_tokens=200, ignore_eos=True, stream=True),
        gen(2, max_tokens=4, ignore_eos=True),
    )
    first.wait(wire.Delta)
    first.close()
    second = machine.client(curve)
    second.send(wire.Attach(program=9, resume_key=KEY))
    assert second.wait(wire.Attached).next_op == 3
    done = second.wait(wire.Done, op=1)
    deltas = [event.text for event in second.seen if isinstance(event, wire.Delta)]
    assert done.value.startswith("".join(deltas))
    assert second.wait(wire.Done, op=2).program == 9
    second.send(append(3, " and", program=9), gen(4, program=9, max_tokens=2, ignore_eos=True), wire.Close(program=9))


def test_a_tenant_that_is_new_and_one_that_is_gone(machine: Machine) -> None:
    machine.type("tenant", "add", "late", "--file", machine.tenants)
    curve = machine.keys("late", "late")
    client = machine.client(curve)
    client.send(wire.Open(program=1), append(0, "Hello"), gen(1, max_tokens=2, ignore_eos=True))
    assert client.wait(wire.Done)
    file = machine.folder / "tenants.toml"
    text = file.read_text()
    file.write_text(text[: text.index('[[tenant]]\nname = "late"')])

    numbers = count(2)

    def is_refused() -> bool:
        client.send(wire.Open(program=next(numbers)), wire.Ping())
        client.seen.clear()
        client.wait(wire.Pong)
        return any(isinstance(event, wire.Refused) and event.status == 401 for event in client.seen)

    eventually(is_refused)
    client.send(append(2, "x"), gen(3, max_tokens=2, ignore_eos=True))
    assert client.wait(wire.Done, op=3), "what runs goes on"


def test_the_port_is_served_again_when_the_process_was_killed(machine: Machine) -> None:
    curve = machine.keys("third", "search")
    before = machine.client(curve).wait(wire.Welcome).epoch
    os.kill(machine.engine.supervisor.pids["tokenizer"], signal.SIGKILL)

    eventually(lambda: machine.client(curve).wait(wire.Welcome).epoch != before)


@pytest.mark.slow
def test_of_a_client_that_dies_nothing_runs_or_is_leased_after_twelve_seconds(machine: Machine) -> None:
    client = machine.client(machine.keys("fourth", "search"))
    client.send(
        wire.Open(program=1),
        append(0, "Once upon a time"),
        gen(1, max_tokens=4, ignore_eos=True),
        wire.Lease(program=1, op=2, branch=0, ttl_s=600.0),
        wire.Fork(program=1, op=3, branch=0, first=1, count=3),
        *(gen(3 + branch, branch=branch, max_tokens=4000, ignore_eos=True) for branch in (1, 2, 3)),
    )
    client.wait(wire.Done, op=1)
    died = time.monotonic()
    client.close()

    def is_clean() -> bool:
        stats = machine.stats()
        busy = ("num_programs", "num_running", "num_waiting", "num_queued", "num_leases", "num_requests_in_flight")
        return not any(stats[name] for name in busy)

    _within(GONE_S - (time.monotonic() - died), is_clean)


def _within(limit_s: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:.1f} s"
        time.sleep(0.2)
