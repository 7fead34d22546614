"""Streamed output is told of once an interval, all of a client's together; what begins and what ends at once."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from tests.tokenizer.programs.harness import World, append, config, encode, gen

INTERVAL_S = 0.03


def streaming(*programs: int, clients: tuple[bytes, ...] = (b"c",), interval_ms: float = 1e3 * INTERVAL_S) -> World:
    """Programs of each client that stream, without any output yet."""
    world = World(settings=config(stream_interval_ms=interval_ms))
    world.runtime.hold = True
    for client in clients:
        if client != b"c":
            world.send(wire.Hello(version=1), client=client)
        for program in programs:
            ops = append(0, "hello", program=program), gen(1, stream=True, program=program)
            world.send(wire.Open(program=program, credits=64), *ops, client=client)
    return world


def say(world: World, piece: str, number: int = 0) -> None:
    """The runtime tells of tokens of the n-th generation."""
    request_id = world.sent(rt.Generate)[number].request_id
    world.core.on_runtime(rt.Tokens(request_id=request_id, token_ids=encode(piece)))


def told(world: World) -> list[tuple[int, str]]:
    """Programs and texts of the deltas of a flush."""
    return [(event.program, event.text) for event in world.flush() if isinstance(event, wire.Delta)]


def test_the_first_token_goes_at_once_and_the_next_ones_together() -> None:
    world = streaming(1)
    say(world, "a")
    assert told(world) == [(1, "a")]
    assert world.core.deltas_due() is None
    for piece in "bc":
        world.now += INTERVAL_S / 4
        say(world, piece)
        assert told(world) == []
    assert world.core.deltas_due() == pytest.approx(100 + 1.25 * INTERVAL_S), "an interval after b came, if nothing comes before"
    world.now = 100 + INTERVAL_S + 1e-6
    assert told(world) == [(1, "bc")]
    assert world.core.deltas_due() is None


def test_it_waits_from_the_last_delta_on() -> None:
    """Where tokens are slower than the interval none of them waits."""
    world = streaming(1)
    for piece in "abc":
        say(world, piece)
        assert told(world) == [(1, piece)]
        world.now += INTERVAL_S + 1e-6


def test_the_end_does_not_wait() -> None:
    world = streaming(1)
    say(world, "a")
    told(world)
    say(world, "b")
    usage = rt.Usage(prompt_tokens=1, cached_tokens=0, output_tokens=2)
    world.core.on_runtime(rt.Finished(request_id=world.sent(rt.Generate)[0].request_id, reason="length", usage=usage))
    assert told(world) == [(1, "b")]
    assert world.one(wire.Done).value == "ab"
    world.now += 2 * INTERVAL_S
    assert told(world) == []


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_what_ends_without_a_value_has_told_all_of_its_text(how: str) -> None:
    world = streaming(1)
    say(world, "a")
    told(world)
    say(world, "b")
    if how == "cancelled":
        world.send(wire.Cancel(program=1, branches=(0,)))
    else:
        request_id = world.sent(rt.Generate)[0].request_id
        world.core.on_runtime(rt.Failed(request_id=request_id, code="forward_failed", message="no"))
    world.flush()
    assert [delta.text for delta in world.of(wire.Delta)] == ["a", "b"]
    assert world.one(wire.Failed).partial == "ab"


def test_all_of_a_client_go_together_but_for_those_that_begin() -> None:
    world = streaming(1, 2, 3)
    for number in range(2):
        say(world, "a", number)
    assert told(world) == [(1, "a"), (2, "a")]
    for number in range(3):
        say(world, "b", number)
    assert told(world) == [(3, "b")]
    say(world, "c", 2)
    world.now += INTERVAL_S + 1e-6
    assert told(world) == [(1, "b"), (2, "b"), (3, "c")]


def test_one_clients_streams_have_nothing_to_do_with_anothers() -> None:
    world = streaming(1, clients=(b"c", b"d"))
    say(world, "a", 0)
    world.flush()
    world.now += INTERVAL_S / 2
    say(world, "x", 1)
    assert told(world) == [(1, "x")]
    say(world, "b", 0)
    say(world, "y", 1)
    assert told(world) == []
    world.now = 100 + INTERVAL_S + 1e-6
    assert told(world) == [(1, "b")]
    assert world.core.deltas_due() == pytest.approx(100 + 1.5 * INTERVAL_S), "y waits since then"


def test_who_can_take_nothing_is_not_waited_for() -> None:
    world = streaming(1)
    say(world, "a")
    told(world)
    say(world, "b")
    world.blocked.add(b"c")
    world.now += 2 * INTERVAL_S
    assert told(world) == []
    assert world.core.deltas_due(world.blocked) is None
    world.blocked.clear()
    assert told(world) == [(1, "b")]


def test_without_an_interval_each_token_is_told_by_itself() -> None:
    world = streaming(1, interval_ms=0.0)
    for piece in "abc":
        say(world, piece)
        assert told(world) == [(1, piece)]


def test_what_is_dropped_meanwhile_is_not_told_of() -> None:
    world = streaming(1)
    say(world, "a")
    told(world)
    say(world, "b")
    world.send(wire.Close(program=1))
    assert world.core.deltas_due() is None
    world.now += 2 * INTERVAL_S
    assert told(world) == []
