"""Admission, connections and queries."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from tests.tokenizer.programs.harness import World, append, config, encode, gen


def test_every_program_is_admitted_or_refused_and_the_counts_add_up() -> None:
    world = World(settings=config(max_queued=4))
    world.runtime.hold = True
    for number in range(200):
        world.send(wire.Open(program=number), append(0, "a", program=number), gen(1, program=number))
    refused = world.of(wire.Refused)
    assert len(world.of(wire.Admitted)) == 4
    assert len(refused) == 196
    assert all(r.status == 503 and r.code == "overloaded" and 1 <= r.retry_after_s <= 60 for r in refused)
    assert not world.of(wire.Failed), "what is sent for a refused program is ignored"
    world.runtime.hold = False
    world.runtime.answer_all()
    world.settle()
    assert len(world.of(wire.Done)) == 4
    world.send(wire.Open(program=1000), append(0, "a", program=1000), gen(1, program=1000))
    assert world.one(wire.Done, program=1000)
    assert world.core.services.admission.num_refused == 196


def test_opens_that_come_before_their_generations_count_too() -> None:
    world = World(settings=config(max_queued=4))
    world.runtime.hold = True
    world.send(*(wire.Open(program=number) for number in range(200)))
    admitted = [event.program for event in world.of(wire.Admitted)]
    assert len(admitted) == 4
    assert len(world.of(wire.Refused)) == 196
    world.send(*(message for number in admitted for message in (append(0, "a", program=number), gen(1, program=number))))
    assert world.core.services.admission.num_queued == 4
    world.runtime.answer_all()
    world.settle()
    # A program that is open and asks for nothing holds its place for a second, not for good.
    world.send(*(wire.Open(program=number) for number in range(300, 304)), wire.Open(program=304))
    assert world.of(wire.Refused)[-1].program == 304
    world.send(wire.Close(program=300), wire.Open(program=305))
    assert world.of(wire.Admitted)[-1].program == 305
    world.now += 1.0
    world.send(wire.Open(program=306))
    assert world.of(wire.Admitted)[-1].program == 306


def test_generations_of_an_admitted_program_are_never_refused() -> None:
    world = World(settings=config(max_queued=4))
    world.runtime.hold = True
    world.send(wire.Open(program=1), append(0, "a"))
    for block in range(2):
        world.send(wire.Fork(program=1, op=1 + block, branch=0, first=1 + 256 * block, count=256))
    world.send(*(gen(10 + b, branch=b) for b in range(1, 513)))
    assert world.core.services.admission.num_queued == 512
    world.send(wire.Open(program=2))
    assert world.one(wire.Refused).program == 2
    world.runtime.answer_all()
    world.settle()
    assert len(world.of(wire.Done)) == 512
    assert world.core.services.admission.num_queued == 0


def test_the_number_of_programs_is_limited() -> None:
    world = World(settings=config(max_programs=2)).send(*(wire.Open(program=n) for n in range(3)))
    assert world.one(wire.Refused).status == 503
    world.send(wire.Close(program=0), wire.Open(program=3))
    assert len(world.of(wire.Admitted)) == 3


def test_hello_negotiates_the_version() -> None:
    world = World()
    welcome = world.one(wire.Welcome)
    assert (welcome.model.name, welcome.model.architecture, welcome.model.has_chat_template) == ("tiny", "llama", True)
    world.send(wire.Hello(version=99), client=b"old")
    assert "version 1, not 99" in world.one(wire.Goodbye).message


def test_whoever_did_not_say_hello_is_turned_away() -> None:
    world = World()
    world.send(wire.Open(program=1), append(0, "a"), client=b"rude")
    assert "did not say Hello" in world.of(wire.Goodbye)[0].message
    assert not world.of(wire.Admitted)


def test_ping_is_answered_and_silence_ends_a_clients_programs() -> None:
    world = World()
    world.runtime.hold = True
    world.send(wire.Open(program=1), append(0, "a"), gen(1), wire.Ping())
    assert world.one(wire.Pong).epoch == world.core.epoch
    world.now += 9
    world.send(wire.Ping())
    world.now += 9
    world.settle()
    assert not world.sent(rt.Cancel)
    world.now += 2
    world.settle()
    assert world.sent(rt.Cancel)
    assert world.sent(rt.Drop)
    assert world.core.services.admission.num_programs == 0
    world.send(gen(2))
    assert world.one(wire.Goodbye)


def test_who_waits_for_a_welcome_may_be_silent() -> None:
    world = World(is_up=False)
    world.now += 60
    world.settle()
    world.runtime.out.append(world.runtime.ready())
    world.settle()
    assert world.one(wire.Welcome)
    world.now += 9
    world.send(wire.Open(program=1))
    assert world.one(wire.Admitted)


def test_a_dead_client_takes_nobody_with_it() -> None:
    world = World().send(wire.Hello(version=1), wire.Open(program=1), append(0, "b"), client=b"d")
    world.send(wire.Open(program=1), append(0, "a"))
    world.core.drop_client(b"d", "gone")
    world.send(gen(1))
    assert world.one(wire.Done)
    assert len(world.sent(rt.Generate)) == 1


def reply(world: World, kind: str, **body: object) -> wire.Reply:
    world.send(wire.Query(id=len(world.of(wire.Reply)), kind=kind, body=body))  # type: ignore[arg-type]
    return world.of(wire.Reply)[-1]


def test_health_and_stats() -> None:
    world = World()
    assert reply(world, "health").body["status"] == "ok"
    world.core.on_runtime(rt.Heartbeat(stats=rt.Stats(num_running=3, idle_s=0.1)))
    assert reply(world, "health").body["num_running"] == 3
    stats = reply(world, "stats").body
    assert (stats["num_running"], stats["num_programs"], stats["pages_total"]) == (3, 0, 0)
    world.core.on_runtime(rt.Heartbeat(stats=rt.Stats(idle_s=60.0)))
    assert reply(world, "health").body["status"] == "stuck"
    world.core.on_runtime(rt.Heartbeat(stats=rt.Stats()))
    world.now += 6
    body = reply(world, "health").body
    assert (body["status"], body["heartbeat_age_s"]) == ("stuck", 6.0)


def test_reset_cache_answers_after_the_runtime() -> None:
    world = World()
    world.core.handle(b"c", wire.Query(id=5, kind="reset_cache"))
    world.core.on_runtime(rt.Heartbeat(stats=rt.Stats(pages_cached=4)))  # under way when the cache was reset
    assert not world.of(wire.Reply)
    world.settle()
    reply = world.one(wire.Reply)
    assert (reply.id, reply.body) == (5, {"pages_leased": 3, "pages_locked": 2}), "what was kept is told"


def test_tokenize_and_detokenize() -> None:
    world = World()
    assert reply(world, "tokenize", text="hello<|end|>").body["ids"] == list(encode("hello<|end|>"))
    chat = reply(world, "tokenize", messages=[{"role": "user", "content": "hi"}]).body
    assert chat["text"] == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert reply(world, "detokenize", ids=chat["ids"]).body["text"] == chat["text"]
    plain = reply(world, "tokenize", messages=[{"role": "user", "content": "hi"}], add_generation_prompt=False).body
    assert plain["text"] == "<|start|>user\nhi<|end|>\n"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("tokenize", {}),
        ("tokenize", {"text": 5}),
        ("tokenize", {"text": "a", "messages": []}),
        ("tokenize", {"messages": ["hi"]}),
        ("tokenize", {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": 1}),
        ("tokenize", {"messages": [{"role": "nobody", "content": "a"}]}),
        ("detokenize", {}),
        ("detokenize", {"ids": ["a"]}),
        ("detokenize", {"ids": [None]}),
        ("detokenize", {"ids": [-1]}),
        ("detokenize", {"ids": [10**9]}),
    ],
)
def test_bad_queries_get_an_error(kind: str, body: dict[str, object]) -> None:
    answer = reply(World(), kind, **body)
    assert answer.status == 400
    assert answer.error
