from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.bench.ask import BenchError, Output
from radixserve.bench.over_socket import SocketTarget
from radixserve_tokenizer.protocol import Append, Close, Drop, Failed, Fork, Gen, Open, Refused, Reply
from tests.lang.fake_server import FakeServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

HELLO = [("system", "Be brief."), ("user", "hello")]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    # Not tmp_path: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="rs-") as folder:
        fake = FakeServer(f"ipc://{Path(folder) / 's'}")
        yield fake
        fake.stop()


def use(server: FakeServer, work: Callable[[SocketTarget], Awaitable[Any]], keys: tuple[str, ...] = ()) -> Any:
    async def run() -> Any:
        target = await SocketTarget.open(server.url, keys=keys)
        try:
            return await work(target)
        finally:
            await target.close()

    return asyncio.run(run())


def test_an_answer_is_timed_and_counted(server: FakeServer) -> None:
    server.answer = lambda gen: ["a", "b", "c"]
    outcome = use(server, lambda target: target.converse().say(HELLO, Output(3, temperature=0.5, schema={"type": "object"}), "x"))
    assert (outcome.error, outcome.texts, outcome.num_chunks, len(outcome.gaps_s)) == ("", ["abc"], 3, 2)
    assert outcome.sent_s <= outcome.first_s <= outcome.ended_s
    assert [append.role for append in server.of(Append)] == ["system", "user"]
    [gen] = server.of(Gen)
    assert (gen.sampling.max_tokens, gen.sampling.ignore_eos, gen.sampling.temperature) == (3, True, 0.5)
    assert gen.constraint.kind == "json_schema"


def test_a_program_keeps_what_was_said_and_is_closed_with_its_last_branch(server: FakeServer) -> None:
    async def work(target: SocketTarget) -> None:
        root = target.converse()
        await root.say(HELLO, Output(1))
        await root.say([("user", "more")], Output(1))
        children = await root.fork(2)
        await root.close()
        for child in children:
            await child.say([("user", "side")], Output(1))
        await children[0].close()
        assert not server.of(Close)
        await children[1].close()
        await asyncio.to_thread(server.wait_for, Close)

    use(server, work)
    assert len(server.of(Open)) == 1
    assert len(server.of(Append)) == 2 + 1 + 2
    assert [gen.branch for gen in server.of(Gen)] == [0, 0, 1, 2]
    assert [drop.branches for drop in server.of(Drop)] == [(0,), (1,)]


def test_choices_are_forks(server: FakeServer) -> None:
    server.answer = lambda gen: ["a", "b"]
    outcome = use(server, lambda target: target.converse().say(HELLO, Output(2, n=3, seed=7)))
    [fork] = server.of(Fork)
    assert fork.count == 3
    assert (outcome.texts, outcome.num_chunks, len(outcome.gaps_s)) == (["ab"] * 3, 6, 3)
    assert {gen.sampling.seed for gen in server.of(Gen)} == {None}  # or all three would say the same


def test_failures_and_refusals_are_errors(server: FakeServer) -> None:
    server.answer = lambda gen: Failed(program=gen.program, op=gen.op, code="too_long", message="no room")
    assert use(server, lambda target: target.converse().say(HELLO, Output(1))).error == "too_long: no room"
    server.on_open = lambda message: Refused(program=message.program, status=503, code="overloaded", message="later")
    outcome = use(server, lambda target: target.converse().say(HELLO, Output(1)))
    assert outcome.error == "503 overloaded: later"
    assert outcome.ended_s >= outcome.sent_s


def test_keys_are_used_by_number(server: FakeServer) -> None:
    async def work(target: SocketTarget) -> None:
        for key in range(3):
            await target.converse(key).say(HELLO, Output(1))

    use(server, work, ("one", "two"))
    assert [message.api_key for message in server.of(Open)] == ["one", "two", "one"]


def test_prompts_are_counted_by_the_server(server: FakeServer) -> None:
    server.on_query = lambda query: Reply(id=query.id, body={"ids": [1, 2, 3]})
    assert use(server, lambda target: target.count(HELLO)) == 3
    server.on_query = lambda query: Reply(id=query.id, error="no", status=403)
    with pytest.raises(BenchError, match="can't tokenize"):
        use(server, lambda target: target.count(HELLO))
