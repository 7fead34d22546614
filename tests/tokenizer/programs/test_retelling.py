"""What a program kept is told again in slices, between which others are served."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import retelling
from tests.tokenizer.programs.harness import FakeRuntime, World, append, encode, gen, says
from tests.tokenizer.programs.test_detached import KEY, lose

COUNT = 40


@pytest.fixture
def it(monkeypatch: pytest.MonkeyPatch) -> World:
    """A detached program that has kept 40 outcomes of about a kilobyte, of which a turn tells some eight; its client is gone."""
    monkeypatch.setattr(retelling, "SLICE_BYTES", 8 << 10)
    made = World(runtime=FakeRuntime(max_context=1 << 16))
    made.send(wire.Open(program=1, detached_ttl_s=60.0, resume_key=KEY), append(0, "hi"))
    made.runtime.scripts.extend(says(f"{number:04}" * 100) for number in range(COUNT))
    made.send(*(gen(number + 1) for number in range(COUNT)))
    lose(made)
    made.auto_flush = False
    return made


def attach(it: World, client: bytes = b"d", program: int = 7) -> None:
    it.send(wire.Hello(version=1), wire.Attach(program=program, resume_key=KEY), client=client)


def turns(it: World) -> list[list[wire.Event]]:
    """What goes out in each turn of the loop until there is nothing more to tell."""
    told: list[list[wire.Event]] = []
    while it.core.is_behind:
        told.append(it.flush())
    return told


def test_others_tokens_go_out_between_the_slices(it: World) -> None:
    it.runtime.hold = True
    it.send(wire.Hello(version=1), wire.Open(program=1), append(0, "x"), gen(1, stream=True), client=b"other")
    [request_id] = it.runtime.requests
    it.flush()
    attach(it)
    slices: list[list[wire.Event]] = []
    while it.core.is_behind:
        it.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode("A")))
        slices.append(it.flush())
    assert len(slices) >= 5
    for events in slices:
        assert len([event for event in events if isinstance(event, wire.Delta) and event.program == 1]) == 1, "a token in each"
        own: list[wire.Event] = [event for event in events if isinstance(event, wire.Done)]
        assert len(wire.encode(own)) < (8 << 10) + 4096, "a slice, and what the last event has more"
    assert [event.op for events in slices for event in events if isinstance(event, wire.Done)] == list(range(1, COUNT + 1))


def test_what_it_says_meanwhile_comes_after_what_it_had_said(it: World) -> None:
    attach(it)
    it.flush()
    it.runtime.scripts.append(says("ABC", "DEF"))
    it.send(gen(COUNT + 1, program=7, stream=True), wire.Query(id=1, kind="health"), client=b"d")
    assert it.core.is_behind, "it still tells"
    events = [event for events in turns(it) for event in events]
    assert isinstance(events[0], wire.Reply), "its connection hears everything else at once"
    assert [event.op for event in events if isinstance(event, wire.Done)][-1] == COUNT + 1
    kinds = [type(event) for event in events[-2:]]
    assert kinds == [wire.Delta, wire.Done]
    assert events[-1].value == "ABCDEF"  # type: ignore[union-attr]


def test_a_stream_begins_when_the_rest_is_told(it: World) -> None:
    attach(it)
    it.runtime.hold = True
    it.send(gen(COUNT + 1, program=7, stream=True), client=b"d")
    [request_id] = it.runtime.requests
    it.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode("ABC")))
    told = [event for events in turns(it) for event in events]
    told += it.flush()
    assert [type(event) for event in told[-2:]] == [wire.Done, wire.Delta]


def test_a_connection_that_is_lost_half_way_and_another_that_takes_over_hear_all(it: World) -> None:
    it.send(wire.Hello(version=1), client=b"e")
    branch_id = next(iter(it.runtime.logs))
    attach(it)
    it.send(wire.Lease(program=7, op=COUNT + 1, branch=0, ttl_s=60.0), client=b"d")
    it.flush()
    it.core.on_runtime(rt.LeaseLost(branch_id=branch_id))
    it.core.drop_client(b"d", "gone")
    assert not it.core.is_behind
    it.now += 1.0
    attach(it, b"e", program=8)
    it.flush()
    attach(it, b"f", program=9)
    it.now += 1.0
    it.core.tick()
    events = [event for events in turns(it) for event in events]
    assert sum(isinstance(event, wire.Failed) and event.code == "taken_over" for event in it.seen) == 1
    assert [event.op for event in events if isinstance(event, wire.Done) and event.program == 9] == list(range(1, COUNT + 1))
    assert events[-1] == wire.LeaseLost(program=9, branch=0), "it was lost while it was told to one that is gone"


def test_closing_it_half_way_ends_the_telling(it: World) -> None:
    attach(it)
    it.flush()
    it.send(wire.Close(program=7), client=b"d")
    assert not it.core.is_behind
    assert not [event for event in it.flush() if isinstance(event, wire.Done)]
