"""Public prefixes: written as a program writes them, published to every runtime, and health waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import PublicPrefix
from tests.tokenizer.programs.harness import World, append, config, encode, gen
from tests.tokenizer.tenants.people import reply

if TYPE_CHECKING:
    import pytest

PREFIXES = (PublicPrefix(text="be nice <|end|>"), PublicPrefix(text="AB raw", role=""))


def status(it: World) -> str:
    return reply(it, "health").body["status"]


def test_they_are_written_as_a_program_would() -> None:
    it = World(settings=config(public_prefixes=PREFIXES))
    system, raw = [publish.token_ids for publish in it.runtime.publishes]
    it.send(wire.Open(program=1), append(0, "be nice <|end|>", role="system"), append(1, "hi", role="user"), gen(2))
    it.send(wire.Open(program=2), append(0, "AB raw", program=2), gen(1, program=2))
    chat, text = list(it.runtime.prompts.values())
    assert tuple(chat[: len(system)]) == system
    assert tuple(text) == raw == encode("AB raw")


def test_health_is_loading_until_they_are_done() -> None:
    it = World(settings=config(public_prefixes=PREFIXES), is_up=False)
    it.runtime.hold_publish = True
    it.runtime.out.append(it.runtime.ready())
    it.settle()
    assert status(it) == "loading"
    it.send(wire.Open(program=1), append(0, "hello"), gen(1))
    assert it.one(wire.Done), "programs need not wait for it"
    it.runtime.finish_publish(it.runtime.publishes[0])
    it.settle()
    assert status(it) == "loading"
    it.runtime.finish_publish(it.runtime.publishes[1])
    it.settle()
    assert status(it) == "ok"


def test_a_new_runtime_computes_them_again() -> None:
    it = World(settings=config(public_prefixes=PREFIXES))
    it.runtime.hold_publish = True
    it.core.on_disconnected()
    assert status(it) == "runtime_down"
    it.runtime.epoch = "r2"
    it.runtime.out.append(it.runtime.ready())
    it.settle()
    assert len(it.runtime.publishes) == 4
    assert status(it) == "loading"
    it.core.on_runtime(it.runtime.ready())
    it.settle()
    assert len(it.runtime.publishes) == 4, "the same runtime again is no new one"


def test_what_a_busy_runtime_puts_off_is_tried_again() -> None:
    it = World(settings=config(public_prefixes=PREFIXES[:1]), is_up=False)
    it.runtime.hold_publish = True
    it.runtime.out.append(it.runtime.ready())
    it.settle()
    for tries in (1, 2):
        assert len(it.runtime.publishes) == tries
        request_id = it.runtime.publishes[-1].request_id
        it.core.on_runtime(rt.Failed(request_id=request_id, code="busy", message="later", retryable=True))
        it.settle()
        assert status(it) == "ok", "who waits for room holds nothing up"
        it.now += 1.0
        it.settle()
    it.runtime.finish_publish(it.runtime.publishes[-1])
    it.now += 9
    it.settle()
    assert len(it.runtime.publishes) == 3


def test_failures_are_logged_and_hold_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    bad = (PublicPrefix(text="x", role="nobody"), PublicPrefix(text="", role=""), PublicPrefix(text="fine"))
    it = World(settings=config(public_prefixes=bad), is_up=False)
    it.runtime.hold_publish = True
    it.runtime.out.append(it.runtime.ready())
    it.settle()
    (publish,) = it.runtime.publishes
    it.core.on_runtime(rt.Failed(request_id=publish.request_id, code="too_long", message="it does not fit"))
    it.settle()
    assert status(it) == "ok"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 3
    assert "can't be written" in errors[0]
    assert "no tokens" in errors[1]
    assert "it does not fit" in errors[2]
