"""Long texts and floods: refused before they cost time, and never at the cost of others."""

from __future__ import annotations

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.text.tokenizer import TextTokenizer
from tests.tokenizer.programs.harness import FakeRuntime, World, append, config, gen, says, tokenizer

MAX_CONTEXT = 512


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that were encoded."""
    lengths: list[int] = []
    encode = TextTokenizer.encode

    def counting(self: TextTokenizer, text: str, *, continues: bool = False) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, continues=continues)

    monkeypatch.setattr(TextTokenizer, "encode", counting)
    return lengths


def opened() -> World:
    return World(runtime=FakeRuntime(max_context=MAX_CONTEXT)).send(wire.Open(program=1, seed=1))


def too_long() -> str:
    return "x" * (MAX_CONTEXT * tokenizer().longest_token + 1)


@pytest.mark.parametrize("role", ["", "user"])
def test_a_text_that_can_not_fit_is_not_encoded(role: str, encoded: list[int]) -> None:
    world = opened()
    world.send(append(0, too_long(), role=role), gen(1))
    failed, skipped = world.of(wire.Failed)
    assert (failed.op, failed.code, failed.status, failed.param) == (0, "context_length_exceeded", 400, "messages")
    assert failed.message.startswith(
        f"This model's maximum context length is {MAX_CONTEXT} tokens. However, the prompt has at least"
    )
    assert (skipped.op, skipped.code) == (1, "skipped")
    assert max(encoded, default=0) < 100
    world.send(wire.Rollback(program=1, op=2, branch=0, to_op=0), append(3, "fine"), gen(4, 4))
    assert world.one(wire.Done)


def test_many_small_texts_count_together(encoded: list[int]) -> None:
    world = opened()
    piece = too_long()[: MAX_CONTEXT // 2]
    world.send(*(append(op, piece) for op in range(100)), gen(100))
    assert world.of(wire.Failed)[0].code == "context_length_exceeded"
    assert not encoded


def test_a_value_referred_to_many_times_is_not_multiplied(encoded: list[int]) -> None:
    world = opened()
    world.runtime.scripts.append(says("ABC" * 60))
    world.send(append(0, "hi"), gen(1, 0))
    assert len(world.one(wire.Done).value) == 180
    world.send(wire.Append(program=1, op=2, branch=0, parts=(wire.VarRef(var=0),) * 1_000_000), gen(3, 3))
    assert world.of(wire.Failed)[0].code == "context_length_exceeded"
    assert max(encoded) < 1000


def test_what_is_a_little_too_long_is_counted_to_the_token() -> None:
    world = opened()
    world.send(wire.Append(program=1, op=0, branch=0, parts=(wire.TokenIds(ids=(10,) * (MAX_CONTEXT + 1)),)), gen(1))
    assert f"has {MAX_CONTEXT + 1} tokens" in world.one(wire.Failed).message
    world.send(wire.Open(program=2))
    world.send(wire.Append(program=2, op=0, branch=0, parts=(wire.TokenIds(ids=(10,) * 1_000_000),)))
    assert world.one(wire.Failed, program=2).code == "context_length_exceeded"


def test_options_and_queries_have_a_limit(encoded: list[int]) -> None:
    world = opened()
    world.send(append(0, "hi"), wire.Score(program=1, op=1, branch=0, var=0, options=("x" * 600_000, "y" * 600_000)))
    failed = world.one(wire.Failed)
    assert (failed.status, failed.param) == (400, "options")
    message = {"role": "user", "content": "x" * 3_000_000}
    world.send(wire.Query(id=1, kind="tokenize", body={"text": "x" * 3_000_000}))
    world.send(wire.Query(id=2, kind="tokenize", body={"messages": [message]}))
    world.send(wire.Query(id=3, kind="detokenize", body={"ids": [5] * 3_000_000}))
    assert [(reply.id, reply.status) for reply in world.of(wire.Reply)] == [(1, 400), (2, 400), (3, 400)]
    assert max(encoded, default=0) < 100


def test_naming_a_million_branches_has_one_answer() -> None:
    world = opened()
    world.send(wire.Cancel(program=1, branches=(7,) * 1_000_000))
    assert world.one(wire.Failed).code == "too_many_branches"


def test_a_turn_has_an_end_and_nothing_is_lost() -> None:
    """Each look at the clock takes 5 ms, as if every op were slow."""
    world = World(settings=config(client_timeout_s=1e9))
    world.auto_flush = False
    slow = {"s": 0.0}

    def clock() -> float:
        slow["s"] += 0.005
        return 100.0 + slow["s"]

    world.core.services.clock = clock
    names = (b"a", b"b", b"c")
    for name in names:
        ops = [append(op, "x") for op in range(40)]
        messages: list[wire.FromClient] = [wire.Hello(version=1), wire.Open(program=1), *ops, gen(40, 0)]
        for message in messages:
            world.core.handle(name, message)
        for number in range(20):
            world.core.handle(name, wire.Query(id=number, kind="tokenize", body={"text": "hello"}))
    assert world.core.is_behind
    assert not world.sent(rt.Generate)
    turns = 0
    done: dict[bytes, list[wire.Event]] = {name: [] for name in names}
    while world.core.is_behind or not all(any(isinstance(event, wire.Done) for event in done[name]) for name in names):
        turns += 1
        assert turns < 1000
        world.core.tick()
        world.runtime.take(world.core.link.take_outgoing())
        events, world.runtime.out = world.runtime.out, []
        for event in events:
            world.core.on_runtime(event)
        for name, sent in world.core.flush():
            if name in done:
                done[name] += sent
    assert turns > 10
    for name in names:
        replies = [event for event in done[name] if isinstance(event, wire.Reply)]
        assert [reply.id for reply in replies] == list(range(20))
        assert len([event for event in done[name] if isinstance(event, wire.Done)]) == 1
    assert all(request.base.new_ids for request in world.runtime.received if isinstance(request, rt.Generate))
