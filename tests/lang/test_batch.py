"""Programs over thousands of inputs."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

import radixserve_lang as rs
from radixserve_lang import testing

if TYPE_CHECKING:
    from collections.abc import Iterator


@rs.function
def double(s: rs.State, number: int) -> int:
    s += rs.user(str(number))
    return s.gen(json=int).value


@rs.function
async def double_async(s: rs.State, number: int) -> int:
    s += rs.user(str(number))
    return await s.gen(json=int)


def answer(text: str) -> object:
    number = int(text.split("user: ")[1].split("\n")[0])
    if number % 1000 == 999:
        return testing.Failure(f"not {number}")
    return 2 * number


@pytest.fixture
def engine() -> Iterator[testing.Scripted]:
    with testing.Scripted(answer) as running:
        yield running


def check(runs: list[rs.Run[int]], count: int) -> None:
    assert len(runs) == count
    for number, run in enumerate(runs):
        if number % 1000 == 999:
            assert f"not {number}" in str(run.error)
        else:
            assert run.value == 2 * number


@pytest.mark.parametrize("program", [double, double_async], ids=["sync", "async"])
def test_thousands_of_inputs_from_a_generator(engine: testing.Scripted, program: Any) -> None:
    threads: list[int] = []
    before = threading.active_count()

    def watched() -> Iterator[int]:
        for number in range(5000):
            if number % 500 == 0:
                threads.append(threading.active_count())
            yield number

    check(program.run_batch(watched(), engine=engine, concurrency=16), 5000)
    assert max(threads) <= before + 17


def test_inputs_are_taken_as_there_is_room(engine: testing.Scripted) -> None:
    done: list[int] = []
    waiting: list[int] = []

    def endless() -> Iterator[int]:
        for number in itertools.count():
            waiting.append(number - len(done))
            yield number

    @rs.function
    def stop_soon(s: rs.State, number: int) -> None:
        if number == 50:
            raise KeyboardInterrupt
        done.append(number)

    with pytest.raises(KeyboardInterrupt):
        stop_soon.run_batch(endless(), engine=engine, concurrency=4)
    assert max(waiting) <= 4


@pytest.mark.parametrize("program", [double, double_async], ids=["sync", "async"])
def test_in_a_running_loop(engine: testing.Scripted, program: Any) -> None:
    async def both() -> tuple[list[rs.Run[int]], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticker = asyncio.create_task(tick())
        runs = await program.arun_batch(iter(range(1200)), engine=engine, concurrency=8)
        ticker.cancel()
        blocking: list[rs.Run[int]] = program.run_batch(range(50), engine=engine, concurrency=8)
        check(blocking, 50)
        return runs, ticks

    runs, ticks = asyncio.run(both())
    check(runs, 1200)
    assert ticks > 100


def test_a_cancelled_batch_stops() -> None:
    async def main() -> None:
        with testing.Scripted(then=testing.RUNNING) as engine:
            task = asyncio.create_task(double.arun_batch(range(100), engine=engine, concurrency=4))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


@pytest.mark.parametrize("program", [double, double_async], ids=["sync", "async"])
def test_inputs_that_raise_end_the_batch(engine: testing.Scripted, program: Any) -> None:
    def broken() -> Iterator[int]:
        yield from range(3)
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        program.run_batch(broken(), engine=engine, concurrency=2)


def test_seeds_and_kinds_of_inputs(engine: testing.Scripted) -> None:
    runs = double.run_batch([(1,), {"number": 2}, 3], engine=engine, seed=7)
    assert [run.value for run in runs] == [2, 4, 6]
    assert double.run_batch([], engine=engine) == []
    assert double.run_batch(iter(()), engine=engine) == []
    with pytest.raises(ValueError, match="concurrency"):
        double.run_batch([1], engine=engine, concurrency=0)


@pytest.mark.parametrize(("asked", "shown"), [(True, True), (None, False), (False, False)])
def test_the_bar_is_quiet_where_nobody_looks(
    engine: testing.Scripted, capsys: pytest.CaptureFixture[str], asked: bool | None, shown: bool
) -> None:
    double.run_batch(range(3), engine=engine, progress=asked)
    double.run_batch(itertools.islice(itertools.count(), 3), engine=engine, progress=asked)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("double" in err) is shown
