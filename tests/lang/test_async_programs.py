"""Async programs, and sync ones under a running loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import radixserve_lang as rs
from radixserve_tokenizer.protocol import Close, Failed, Gen, Open

if TYPE_CHECKING:
    from tests.lang.fake_server import Engine, FakeServer


@rs.function
async def both(s: rs.State, question: str) -> list[str]:
    s += rs.user(question)
    with s.fork(2) as branches:
        first, second = [b.gen() for b in branches]
        return [await first, await second]


@rs.function
def plain(s: rs.State, question: str) -> str:
    s += rs.user(question)
    return s.gen().value


def test_an_async_program_runs_everywhere(engine: Engine, server: FakeServer) -> None:
    server.answer = lambda gen: f"v{gen.var}"
    assert both.run("q", engine=engine).value == ["v0", "v1"]

    async def inside() -> tuple[Any, Any]:
        before = threading.active_count()
        value = (await both.arun("q", engine=engine)).value
        assert threading.active_count() == before
        return value, both.run("q", engine=engine).value  # in a notebook's loop: blocks, and works

    assert asyncio.run(inside()) == (["v0", "v1"], ["v0", "v1"])


def test_a_sync_program_under_a_loop(engine: Engine) -> None:
    async def inside() -> list[str]:
        runs = await asyncio.gather(*(plain.arun(str(i), engine=engine) for i in range(40)))
        return [run.value for run in runs] + [plain.run("q", engine=engine).value]

    assert asyncio.run(inside()) == ["ok"] * 41


def test_async_batch_stays_in_one_loop_and_in_bounds(engine: Engine, server: FakeServer) -> None:
    running: list[int] = [0]
    most: list[int] = [0]
    threads: set[int] = set()

    @rs.function
    async def one(s: rs.State, text: str) -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        threads.add(threading.get_ident())
        try:
            if text == "3":
                raise ValueError(text)
            return await s.gen() + text
        finally:
            running[0] -= 1

    runs = one.run_batch(map(str, range(20)), engine=engine, concurrency=5, progress=False)
    assert [run.value for run in runs if run.error is None] == [f"ok{i}" for i in range(20) if i != 3]
    assert isinstance(runs[3].error, ValueError)
    assert 1 < most[0] <= 5
    assert len(threads) == 1


def test_async_iteration_and_completion(engine: Engine, server: FakeServer) -> None:
    @rs.function
    async def reads(s: rs.State) -> tuple[str, list[int]]:
        branches = s.fork(4)
        values = [b.gen(json=int) for b in branches]
        order = [await v async for v in rs.as_completed(values)]
        v = s.gen()
        pieces = [piece async for piece in v]
        assert "".join(pieces) == await v
        return "".join(pieces), order

    held: list[Gen] = []

    def answer(gen: Gen) -> str | None:
        if gen.branch == 0:
            return "streamed text"
        held.append(gen)
        if len(held) == 4:
            for number in (3, 1, 0, 2):
                server.finish(number, str(number))
        return None

    server.answer = answer
    assert reads.run(engine=engine).value == ("streamed text", [3, 1, 0, 2])


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_cancelling_arun_cancels_the_program(engine: Engine, server: FakeServer, kind: str) -> None:
    ended = threading.Event()

    @rs.function
    async def waits(s: rs.State) -> str:
        try:
            return await s.gen()
        finally:
            ended.set()

    @rs.function
    def blocks(s: rs.State) -> str:
        try:
            return s.gen().value
        finally:
            ended.set()

    async def inside() -> None:
        program = waits if kind == "async" else blocks
        task = asyncio.ensure_future(program.arun(engine=engine))
        await asyncio.to_thread(server.wait_for, Gen)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    server.answer = lambda gen: None
    asyncio.run(inside())
    assert ended.wait(5)
    server.wait_for(Close)


def test_an_async_read_raises_in_place(engine: Engine, server: FakeServer) -> None:
    @rs.function
    async def fails(s: rs.State) -> str:
        return await s.gen()

    server.answer = lambda gen: Failed(program=gen.program, op=gen.op, var=gen.var, code="boom", message="no")
    with pytest.raises(rs.OpError, match=r"in fails failed \(boom\)"):
        fails.run(engine=engine)


def test_async_streams(engine: Engine, server: FakeServer) -> None:
    @rs.function
    async def talk(s: rs.State) -> int:
        await s.gen()
        await s.gen()
        return 3

    @rs.function
    def plain_talk(s: rs.State) -> int:
        s.gen()
        s.gen().settle()
        return 3

    async def inside(program: rs.Function[[], int] | rs.AsyncFunction[[], int]) -> None:
        stream = program.stream(engine=engine)
        assert "".join([piece async for piece in stream]) == "one two one two "
        assert stream.run.value == 3

    server.answer = lambda gen: ["one ", "two "]
    for program in (talk, plain_talk):
        asyncio.run(inside(program))
        assert "".join(program.stream(engine=engine)) == "one two one two "


def test_leaving_an_async_stream_ends_its_program(engine: Engine, server: FakeServer) -> None:
    @rs.function
    async def endless(s: rs.State) -> None:
        await s.gen()
        await s.gen()

    async def inside() -> None:
        async for _ in endless.stream(engine=engine):
            break

    server.answer = lambda gen: "some text" if gen.op == 0 else None
    asyncio.run(inside())
    server.wait_for(Close)


def test_the_default_engine_under_a_loop(monkeypatch: pytest.MonkeyPatch, server: FakeServer, url: str) -> None:
    monkeypatch.setenv("RADIXSERVE_URL", url)
    before = threading.active_count()

    async def inside() -> str:
        return (await plain.arun("q")).value

    assert asyncio.run(inside()) == "ok"
    assert len(server.of(Open)) == 1
    for thread in threading.enumerate():
        if thread.name.startswith("radixserve-program"):
            thread.join(5)
    assert threading.active_count() == before
