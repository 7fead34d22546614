"""A program that is read while it runs."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from radixserve_lang.cell import LoopEvent
from radixserve_lang.execution import run_session, run_session_async
from radixserve_lang.pieces import iterate, iterate_async
from radixserve_lang.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from radixserve_lang.cell import Cell
    from radixserve_lang.execution import Options
    from radixserve_lang.run import Run

T = TypeVar("T")


class Stream(Generic[T]):
    """Iterate once, with `for` or `async for`; afterwards `run` is the outcome.

    The pieces are the text of the root branch's `gen` and `select`, in order. The program starts with the iteration;
    leaving the iteration early cancels it. What the program raises is raised by the iteration, after the text before it.
    """

    def __init__(self, body: Callable[..., Any], options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._body = body
        self._options = options
        self._args = args
        self._kwargs = kwargs
        self._run: Run[T] | None = None
        self._started = False

    def __iter__(self) -> Iterator[str]:
        self._start()
        cells: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
        with self._options.client() as client:
            session = self._options.open(client, on_root_value=cells.put)
            future = in_thread(lambda: run_session(session, self._body, self._args, self._kwargs, self._options.tracer))
            future.add_done_callback(lambda _: cells.put(None))
            try:
                while (cell := cells.get()) is not None:
                    yield from iterate(session, cell)
                self._run = future.result()
            finally:
                session.end("its stream was left")

    async def __aiter__(self) -> AsyncIterator[str]:
        self._start()
        cells: deque[Cell | None] = deque()
        changed = LoopEvent()

        def arrived(cell: Cell | None) -> None:
            cells.append(cell)
            changed.set()

        async with self._options.client_async() as client:
            session = self._options.open(client, on_root_value=arrived)
            task = asyncio.ensure_future(run_session_async(session, self._body, self._args, self._kwargs, self._options.tracer))
            task.add_done_callback(lambda _: arrived(None))
            try:
                while True:
                    while not cells:
                        await changed.wait()
                        changed.clear()
                    cell = cells.popleft()
                    if cell is None:
                        break
                    async for piece in iterate_async(session, cell):
                        yield piece
                self._run = await task
            finally:
                session.end("its stream was left")
                task.cancel()

    def _start(self) -> None:
        if self._started:
            raise RuntimeError("a stream can be read once; call stream() again for another run")
        self._started = True

    @property
    def run(self) -> Run[T]:
        """The outcome; raises RuntimeError before the iteration has ended."""
        if self._run is None:
            raise RuntimeError("the stream has not been read to its end")
        return self._run
