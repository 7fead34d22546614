"""One program over many inputs, a bounded number at a time."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from radixserve_lang.execution import run_session, run_session_async
from radixserve_lang.run import Run, run_of
from radixserve_lang.threads import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.client import Client
    from radixserve_lang.execution import Options
    from radixserve_lang.session import Session

_SEED_MODULUS = 1 << 63


def run_batch(
    body: Callable[..., Any], options: Options, inputs: list[Any], *, concurrency: int, progress: bool
) -> list[Run[Any]]:
    """Runs in the order of their inputs. Raises `ConnectionFailedError` before any of them when there is no server."""
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, not {concurrency}")
    if not inputs:
        return []
    with options.client() as client, _bar(getattr(body, "__name__", "runs"), len(inputs), shown=progress) as advance:
        _ = client.welcome
        batch = _Batch(body, options, client, inputs, advance)
        workers = min(concurrency, len(inputs))
        if inspect.iscoroutinefunction(body):
            return run_coroutine(lambda: batch.run_async(workers), batch.stop)
        return batch.run_threads(workers)


class _Batch:
    def __init__(
        self, body: Callable[..., Any], options: Options, client: Client, inputs: list[Any], advance: Callable[[], None]
    ) -> None:
        self._body = body
        self._options = options
        self._client = client
        self._inputs = inputs
        self._advance = advance
        self._lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._stopped = False

    def run_threads(self, workers: int) -> list[Run[Any]]:
        """A sync program needs a thread for each run that is under way."""
        pool = ThreadPoolExecutor(workers, thread_name_prefix="radixserve-batch")
        futures = [pool.submit(self._one, index) for index in range(len(self._inputs))]
        try:
            for _ in as_completed(futures):
                self._advance()
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]

    async def run_async(self, workers: int) -> list[Run[Any]]:
        """All of an async program's runs share one loop."""
        runs: dict[int, Run[Any]] = {}
        indices = iter(range(len(self._inputs)))

        async def work() -> None:
            for index in indices:
                runs[index] = await self._one_async(index)
                self._advance()

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
        return [runs[index] for index in range(len(self._inputs))]

    def stop(self) -> None:
        """End what is under way: its reads raise."""
        with self._lock:
            self._stopped = True
            sessions = list(self._sessions)
        for session in sessions:
            session.end("the batch was interrupted")

    def _one(self, index: int) -> Run[Any]:
        args, kwargs = _arguments(self._inputs[index])
        with self._session(index) as session:
            try:
                return run_session(session, self._body, args, kwargs)
            except Exception as error:
                return run_of(session.root, None, error)

    async def _one_async(self, index: int) -> Run[Any]:
        args, kwargs = _arguments(self._inputs[index])
        with self._session(index) as session:
            try:
                return await run_session_async(session, self._body, args, kwargs)
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
def _bar(name: str, total: int, *, shown: bool) -> Generator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(name, total=total)
        yield lambda: bar.advance(task)
