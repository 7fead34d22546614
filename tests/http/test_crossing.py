"""Events that cross from a thread into the loop: all of them, in order, and none is left behind."""

from __future__ import annotations

import asyncio
import threading
import time

from radixserve.http.crossing import Arrival, Crossing
from radixserve_tokenizer.protocol import Delta


def delta(number: int) -> Delta:
    return Delta(program=0, op=number, var=0, text="")


def test_none_is_lost_however_thread_and_loop_meet() -> None:
    """The last of each burst would be, if the loop ended its round between a look and an addition."""

    async def main() -> list[int]:
        heard: list[int] = []
        everything = asyncio.Event()

        def arrived(arrival: Arrival) -> None:
            assert isinstance(arrival.event, Delta)
            heard.append(arrival.event.op)
            if len(heard) == count:
                everything.set()

        on_event = Crossing().to(arrived, 3)

        def send() -> None:
            for number in range(count):
                on_event(delta(number))
                if number % 7 == 0:
                    time.sleep(0)

        thread = threading.Thread(target=send)
        thread.start()
        await asyncio.wait_for(everything.wait(), 30.0)
        thread.join()
        return heard

    count = 20_000
    assert asyncio.run(main()) == list(range(count))


def test_what_comes_together_wakes_the_loop_once() -> None:
    async def main() -> tuple[int, list[tuple[int, int]]]:
        loop, wakes = asyncio.get_running_loop(), 0
        crossing = Crossing()
        wake = loop.call_soon_threadsafe

        def counted(*args: object) -> asyncio.Handle:
            nonlocal wakes
            wakes += 1
            return wake(*args)  # type: ignore[arg-type]

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        heard: list[tuple[int, int]] = []

        def arrived(arrival: Arrival) -> None:
            assert isinstance(arrival.event, Delta)
            heard.append((arrival.program, arrival.event.op))

        ways = [crossing.to(arrived, program) for program in range(4)]
        for number in range(3):
            for way in ways:
                way(delta(number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return wakes, heard

    wakes, heard = asyncio.run(main())
    assert wakes == 1
    assert heard == [(program, number) for number in range(3) for program in range(4)]


def test_one_that_fails_holds_up_none_of_the_others() -> None:
    async def main() -> tuple[list[int], list[str]]:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        heard: list[int] = []
        crossing = Crossing()

        def fails(_: Arrival) -> None:
            raise ValueError("no such program")

        crossing.to(fails, 0)(delta(0))
        crossing.to(lambda arrival: heard.append(arrival.program), 1)(delta(1))
        await asyncio.sleep(0.01)
        return heard, told

    assert asyncio.run(main()) == ([1], ["no such program"])


def test_a_loop_that_is_closed_hears_nothing() -> None:
    async def main() -> Crossing:
        return Crossing()

    heard: list[Arrival] = []
    on_event = asyncio.run(main()).to(heard.append, 0)
    on_event(delta(0))
    on_event(delta(1))
    assert not heard
