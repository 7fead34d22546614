"""One program over many inputs, a bounded number at a time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import sys
import threading
from collections.abc import Generator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from radixserve_lang.execution import run_session, run_session_async
from radixserve_lang.run import Run, run_of
from radixserve_lang.threads import in_thread, run_coroutine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve_lang.client import Client
    from radixserve_lang.execution import Options
    from radixserve_lang.session import Session

_SEED_MODULUS = 1 << 63


def run_batch(
    body: Callable[..., Any], options: Options, inputs: Iterable[Any], *, concurrency: int, progress: bool | None
) -> list[Run[Any]]:
    """Runs in the order of their inputs. Raises `ConnectionFailedError` before any of them when there is no server."""
    workers = _workers(inputs, concurrency)
    if not workers:
        return []
    with options.client() as client, _bar(body, inputs, progress) as advance:
        _ = client.welcome
        batch = _Batch(body, options, client, inputs, advance)
        if inspect.iscoroutinefunction(body):
            return run_coroutine(lambda: batch.run_async(workers), batch.stop)
        return batch.run_threads(workers)


async def run_batch_async(
    body: Callable[..., Any], options: Options, inputs: Iterable[Any], *, concurrency: int, progress: bool | None
) -> list[Run[Any]]:
    """The same without blocking the loop."""
    workers = _workers(inputs, concurrency)
    if not workers:
        return []
    async with options.client_async() as client:
        await asyncio.wrap_future(in_thread(lambda: client.welcome))
        with _bar(body, inputs, progress) as advance:
            batch = _Batch(body, options, client, inputs, advance)
            try:
                return await batch.run_async(workers)
            except BaseException:
                batch.stop()
                raise


def _workers(inputs: Iterable[Any], concurrency: int) -> int:
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
    return min(concurrency, len(inputs)) if isinstance(inputs, Sized) else concurrency


class _Batch:
    """Inputs are taken one by one, as there is room for them, so an endless generator costs no memory."""

    def __init__(
        self, body: Callable[..., Any], options: Options, client: Client, inputs: Iterable[Any], advance: Callable[[], None]
    ) -> None:
        self._body = body
        self._options = options
        self._client = client
        self._inputs = enumerate(inputs)
        self._advance = advance
        self._lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._runs: dict[int, Run[Any]] = {}
        self._stopped = False

    def run_threads(self, workers: int) -> list[Run[Any]]:
        """A sync program needs a thread for each run that is under way."""
        pool = ThreadPoolExecutor(workers, thread_name_prefix="radixserve-batch")
        futures = [pool.submit(contextvars.copy_context().run, self._work) for _ in range(workers)]
        try:
            for future in as_completed(futures):
                future.result()  # raises what ended its thread
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return self._in_order()

    async def run_async(self, workers: int) -> list[Run[Any]]:
        """All runs of an async program share one loop; one of a sync program has a thread."""

        async def work() -> None:
            while (taken := self._take()) is not None:
                index, value = taken
                self._runs[index] = await self._one_async(index, value)
                self._advance()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the inputs raised it; a run's own is kept
        return self._in_order()

    def stop(self) -> None:
        """End what is under way: its reads raise."""
        with self._lock:
            self._stopped = True
            sessions = list(self._sessions)
        for session in sessions:
            session.end("the batch was interrupted")

    def _take(self) -> tuple[int, Any] | None:
        with self._lock:
            return None if self._stopped else next(self._inputs, None)

    def _in_order(self) -> list[Run[Any]]:
        return [self._runs[index] for index in range(len(self._runs))]

    def _work(self) -> None:
        try:
            while (taken := self._take()) is not None:
                index, value = taken
                self._runs[index] = self._one(index, value)
                self._advance()
        except BaseException:
            self.stop()  # here, not where the batch waits: the others would take more inputs meanwhile
            raise

    def _one(self, index: int, value: Any) -> Run[Any]:
        args, kwargs = _arguments(value)
        with self._session(index) as session:
            try:
                return run_session(session, self._body, args, kwargs, self._options.tracer)
            except Exception as error:
                return run_of(session.root, None, error)

    async def _one_async(self, index: int, value: Any) -> Run[Any]:
        args, kwargs = _arguments(value)
        with self._session(index) as session:
            try:
                return await run_session_async(session, self._body, args, kwargs, self._options.tracer)
            except Exception as error:
                return run_of(session.root, None, error)

    @contextlib.contextmanager
    def _session(self, index: int) -> Generator[Session]:
        seed = self._options.seed
        options = self._options if seed is None else self._options.but(seed=(seed + index) % _SEED_MODULUS)
        session = options.open(self._client)
        with self._lock:
            self._sessions.add(session)
            stopped = self._stopped
        if stopped:
            session.end("the batch was interrupted")
        try:
            yield session
        finally:
            with self._lock:
                self._sessions.discard(session)


def _arguments(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(value, tuple):
        return value, {}
    if isinstance(value, Mapping):
        return (), dict(cast("Mapping[str, Any]", value))
    return (value,), {}


@contextlib.contextmanager
def _bar(body: Callable[..., Any], inputs: Iterable[Any], progress: bool | None) -> Generator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty() if progress is None else progress
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(body.__name__, total=len(inputs) if isinstance(inputs, Sized) else None)
        yield lambda: bar.advance(task)
