"""Running one program: open it, call the user's function, close it whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixserve_lang.budget import Budget
from radixserve_lang.connect import connect
from radixserve_lang.otel import traced_run
from radixserve_lang.run import Run, run_of
from radixserve_lang.session import Session
from radixserve_lang.state import State
from radixserve_lang.threads import in_thread, run_coroutine
from radixserve_lang.var import Var

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from opentelemetry.trace import Tracer

    from radixserve_lang.cell import Cell
    from radixserve_lang.client import Client
    from radixserve_lang.connect import EngineLike
    from radixserve_tokenizer.protocol import Priority


@dataclass(frozen=True, slots=True)
class Options:
    """How to run; None is the default."""

    engine: EngineLike | None = None
    seed: int | None = None
    priority: Priority | None = None
    cache_salt: str | None = None
    budget: Budget | None = None
    detached_ttl_s: float | None = None
    resume_key: str | None = None
    tracer: Tracer | None = None

    def but(self, **changes: Any) -> Options:
        """With what of `changes` is not None."""
        return dataclasses.replace(self, **{name: value for name, value in changes.items() if value is not None})

    def take(self, kwargs: dict[str, Any]) -> Options:
        """With `engine`, `seed` and `budget` taken out of a program's keyword arguments."""
        return self.but(**{name: kwargs.pop(name, None) for name in ("engine", "seed", "budget")})

    @contextlib.contextmanager
    def client(self) -> Generator[Client]:
        """The engine's client, or one of its own for the default engine."""
        if self.engine is not None:
            yield _client_of(self.engine)
        else:
            with connect() as remote:
                yield remote.client

    @contextlib.asynccontextmanager
    async def client_async(self) -> AsyncGenerator[Client]:
        """The same without blocking the loop."""
        if self.engine is not None:
            yield _client_of(self.engine)
            return
        remote = await asyncio.wrap_future(in_thread(connect))
        try:
            yield remote.client
        finally:
            await asyncio.wrap_future(in_thread(remote.close))

    def open(self, client: Client, on_root_value: Callable[[Cell], None] | None = None) -> Session:
        """Start a program."""
        if self.budget is not None and not isinstance(self.budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"budget= takes an rs.Budget, as in budget=rs.Budget(tokens=2000), not {self.budget!r}")
        if not isinstance(self.detached_ttl_s or 0.0, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"detached_ttl_s= takes seconds, not {self.detached_ttl_s!r}")
        return Session(
            client,
            seed=self.seed,
            priority=self.priority or "standard",
            cache_salt=self.cache_salt or "",
            budget=self.budget,
            detached_ttl_s=self.detached_ttl_s or 0.0,
            resume_key=self.resume_key or "",
            on_root_value=on_root_value,
        )


def _client_of(engine: EngineLike) -> Client:
    if not hasattr(engine, "client"):
        raise TypeError(f"engine= takes an rs.Engine(...) or what rs.connect(...) returns, not {engine!r}")
    return engine.client


def execute(body: Callable[..., Any], options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
    """Run to the end in this thread; raises what the program raises."""
    with options.client() as client:
        return run_session(options.open(client), body, args, kwargs, options.tracer)


async def execute_async(body: Callable[..., Any], options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[Any]:
    """The same under a running loop."""
    async with options.client_async() as client:
        return await run_session_async(options.open(client), body, args, kwargs, options.tracer)


def run_session(
    session: Session, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracer: Tracer | None = None
) -> Run[Any]:
    """Run `body`, sync or async, in an opened session, from sync code."""
    if inspect.iscoroutinefunction(body):
        return run_coroutine(
            lambda: run_session_async(session, body, args, kwargs, tracer), lambda: session.end("the run was interrupted")
        )
    with traced_run(tracer, body.__name__, session):
        try:
            value = body(State(session, session.root), *args, **kwargs)
            for variable in _returned(value):
                variable.settle()
            _raise_unread(session)
        finally:
            session.end("its program has ended")
    return run_of(session.root, value, None)


async def run_session_async(
    session: Session, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tracer: Tracer | None = None
) -> Run[Any]:
    """Run `body`, sync or async, in an opened session, under a loop."""
    if not inspect.iscoroutinefunction(body):
        try:
            return await asyncio.wrap_future(in_thread(lambda: run_session(session, body, args, kwargs, tracer)))
        finally:
            # After a cancelled wait this ends the program under its thread, whose next read raises.
            session.end("its run was cancelled")
    with traced_run(tracer, body.__name__, session):
        try:
            value = await body(State(session, session.root), *args, **kwargs)
            for variable in _returned(value):
                await variable.settle_async()
            _raise_unread(session)
        finally:
            session.end("its program has ended")
    return run_of(session.root, value, None)


def _returned(value: Any) -> list[Var[Any]]:
    """Vars that the program returned, alone or in a list, tuple or dict: they are waited for, since nobody could read them later."""
    items: list[Any] = (
        list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list | tuple) else [value]
    )
    return [item for item in items if isinstance(item, Var)]


def _raise_unread(session: Session) -> None:
    failure = session.unread_failure()
    if failure is not None:
        raise failure
