"""A client that is suspended and a line on which nothing comes through: what a program sees of it, on real sockets."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import zmq

import radixserve_lang as rs
from radixserve_lang import connection as connection_module
from tests.support.line import Line
from tests.tokenizer.server.rig import Rig, eventually, rig
from tests.tokenizer.server.test_remote import free_port
from tests.tokenizer.tenants.people import key, tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUICK: dict[str, Any] = {"client_timeout_s": 0.6, "heartbeat_s": 0.1}


class Suspension:
    """Stops the client's own thread for a while, as if its process were suspended."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def flush_due(self, now: float) -> None:
        assert self.over.wait(20)


@rs.function
def asking(s: rs.State, meanwhile: Callable[[], None]) -> str:
    s += rs.user("hi")
    answer = s.gen(max_tokens=5)
    assert not answer.done
    meanwhile()
    return answer.value


def answer(it: Rig) -> None:
    """The runtime goes on."""
    it.runtime.runtime.hold = False
    it.runtime.runtime.answer_all()


def suspended(it: Rig, engine: rs.EngineLike, *, until_forgotten: bool) -> Callable[[], None]:
    """Suspend the client until the server has forgotten it, let the runtime answer, go on."""

    def meanwhile() -> None:
        eventually(lambda: len(it.runtime.runtime.requests) == 1)
        suspension = Suspension()
        transport: Any = engine.client.transport
        transport.flush_at(time.monotonic(), suspension)
        if until_forgotten:
            eventually(lambda: not it.server._core._clients)
        answer(it)
        suspension.over.set()

    return meanwhile


def test_who_is_suspended_for_too_long_is_told_what_it_has_lost() -> None:
    with rig(**QUICK) as it, rs.connect(it.settings.socket) as engine:
        it.runtime.runtime.hold = True
        with pytest.raises(rs.ServerGoneError, match=r"silent for 0\.6 s and its programs are gone") as caught:
            asking.run(suspended(it, engine, until_forgotten=True), engine=engine)
        assert "waiting for gen at" in str(caught.value)
        assert "test_stalls.py" in str(caught.value)
        assert asking.run(lambda: None, engine=engine).value == "ok", "and may go on with the next"


@pytest.mark.parametrize("until_forgotten", [False, True])
def test_a_short_one_or_a_detached_program_is_not_noticed(until_forgotten: bool) -> None:
    with rig(**QUICK) as it, rs.connect(it.settings.socket) as engine:
        it.runtime.runtime.hold = True
        program = asking.using(detached_ttl_s=30.0) if until_forgotten else asking
        assert program.run(suspended(it, engine, until_forgotten=until_forgotten), engine=engine).value == "ok"


@contextmanager
def over_a_line(tmp_path: Path) -> Iterator[tuple[Rig, Line, rs.RemoteEngine]]:
    server_public, server_secret = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    keys = tmp_path / "client.keys"
    keys.write_text(f'public-key = "{public.decode()}"\nsecret-key = "{secret.decode()}"\n')
    people = (tenant("alice", curve_keys=(public.decode(),)),)
    listen = f"tcp://127.0.0.1:{(port := free_port())}"
    with rig(tenants=people, listen=listen, curve_secret_key=server_secret.decode(), **QUICK) as it:
        line = Line(port)
        try:
            with rs.connect(
                f"tcp://127.0.0.1:{line.port}", key("alice"), server_key=server_public.decode(), client_keys=keys
            ) as engine:
                yield it, line, engine
        finally:
            line.close()


def test_a_line_on_which_nothing_comes_through_ends_the_program(tmp_path: Path) -> None:
    with over_a_line(tmp_path) as (it, line, engine):
        it.runtime.runtime.hold = True

        def meanwhile() -> None:
            eventually(lambda: len(it.runtime.runtime.requests) == 1)
            line.is_dead = True

        with pytest.raises(rs.ServerGoneError, match=r"the server has been silent for 0\.6 s") as caught:
            asking.run(meanwhile, engine=engine)
        assert "waiting for gen at" in str(caught.value)
        eventually(lambda: not it.runtime.runtime.requests)


def test_a_detached_program_goes_on_when_the_line_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the client has tried to connect meanwhile, and nothing ever answers on that connection."""
    monkeypatch.setattr(connection_module, "UNGREETED_SILENCE_S", 0.6)
    monkeypatch.setattr(connection_module, "UNGREETED_PING_S", 0.1)
    with over_a_line(tmp_path) as (it, line, engine):
        it.runtime.runtime.hold = True

        def meanwhile() -> None:
            eventually(lambda: len(it.runtime.runtime.requests) == 1)
            before, line.is_dead = line.num_connections, True
            eventually(lambda: line.num_connections > before)
            answer(it)
            line.is_dead = False

        assert asking.using(detached_ttl_s=60.0).run(meanwhile, engine=engine).value == "ok"
