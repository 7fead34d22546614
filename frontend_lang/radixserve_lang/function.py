"""`@rs.function`: an agent program."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from radixserve_lang.batch import run_batch, run_batch_async
from radixserve_lang.execution import Options, execute, execute_async
from radixserve_lang.state import State
from radixserve_lang.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Self

    from opentelemetry.trace import Tracer

    from radixserve_lang.budget import Budget
    from radixserve_lang.connect import EngineLike
    from radixserve_lang.run import Run
    from radixserve_tokenizer.protocol import Priority

P = ParamSpec("P")
T = TypeVar("T")

#: Arguments of `run` that are not the program's own.
RESERVED = ("engine", "seed", "budget")


class Program(Generic[P, T]):
    """A program that can be run, any number of times and at once. Made by `@rs.function`.

    `run` and its siblings take the program's arguments without its state. `engine=` says where (default: the engine at
    RADIXSERVE_URL), `seed=` makes the run repeatable and `budget=` limits it. A type checker can't add these to the program's
    own parameters, so it does not check the others beside them; `program.using(engine=e).run(...)` is checked in full.
    """

    def __init__(self, body: Callable[..., Any], options: Options) -> None:
        self._body = body
        self._options = options
        self.__name__: str = body.__name__
        self.__qualname__ = body.__qualname__
        self.__module__ = body.__module__
        self.__doc__ = body.__doc__
        self.__wrapped__ = body

    def using(
        self,
        *,
        engine: EngineLike | None = None,
        seed: int | None = None,
        priority: Priority | None = None,
        cache_salt: str | None = None,
        budget: Budget | None = None,
        detached_ttl_s: float | None = None,
        resume_key: str | None = None,
        tracer: Tracer | None = None,
    ) -> Self:
        """The same program with these settings; what is left out stays as it was.

        With `detached_ttl_s` a run outlives a lost connection by so many seconds: it goes on when the engine can be reached
        again. A `resume_key` (a secret of 16 to 128 characters, for one run) also lets another process take the run up: the
        program runs from its beginning there, and what had been generated comes as it is stored. It needs a TTL, and a
        program whose ops depend on its arguments and values alone. An OpenTelemetry `tracer` gets a span for each run, op
        and tool.
        """
        changes = {
            "engine": engine,
            "seed": seed,
            "priority": priority,
            "cache_salt": cache_salt,
            "budget": budget,
            "detached_ttl_s": detached_ttl_s,
            "resume_key": resume_key,
            "tracer": tracer,
        }
        return type(self)(self._body, self._options.but(**changes))

    @overload
    def run(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]: ...
    @overload
    def run(
        self, *args: Any, engine: EngineLike | None, seed: int | None = None, budget: Budget | None = None, **kwargs: Any
    ) -> Run[T]: ...
    @overload
    def run(self, *args: Any, seed: int | None, budget: Budget | None = None, **kwargs: Any) -> Run[T]: ...
    @overload
    def run(self, *args: Any, budget: Budget | None, **kwargs: Any) -> Run[T]: ...
    def run(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Run to the end and return the result; raises what the program raises.

        Works inside a running event loop too (it blocks; `arun` does not). When the program has returned, what still
        runs is cancelled, and a failure that had come by then but that nobody read is raised.
        """
        options = self._options.take(kwargs)
        return execute(self._body, options, args, kwargs)

    @overload
    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]: ...
    @overload
    async def arun(
        self, *args: Any, engine: EngineLike | None, seed: int | None = None, budget: Budget | None = None, **kwargs: Any
    ) -> Run[T]: ...
    @overload
    async def arun(self, *args: Any, seed: int | None, budget: Budget | None = None, **kwargs: Any) -> Run[T]: ...
    @overload
    async def arun(self, *args: Any, budget: Budget | None, **kwargs: Any) -> Run[T]: ...
    async def arun(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """The same without blocking the loop: an async program runs in it, a sync one in a thread. Cancelling it cancels the program."""
        options = self._options.take(kwargs)
        return await execute_async(self._body, options, args, kwargs)

    @overload
    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[T]: ...
    @overload
    def stream(
        self, *args: Any, engine: EngineLike | None, seed: int | None = None, budget: Budget | None = None, **kwargs: Any
    ) -> Stream[T]: ...
    @overload
    def stream(self, *args: Any, seed: int | None, budget: Budget | None = None, **kwargs: Any) -> Stream[T]: ...
    @overload
    def stream(self, *args: Any, budget: Budget | None, **kwargs: Any) -> Stream[T]: ...
    def stream(self, *args: Any, **kwargs: Any) -> Stream[Any]:
        """Run while iterating (`for` or `async for`) over the text that `gen` and `select` add to the root branch."""
        options = self._options.take(kwargs)
        return Stream(self._body, options, args, kwargs)

    def run_batch(
        self,
        inputs: Iterable[Any],
        *,
        engine: EngineLike | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
        concurrency: int = 32,
        progress: bool | None = None,
    ) -> list[Run[T]]:
        """Run once for each input, at most `concurrency` at a time, and return the runs in the inputs' order.

        An input is a tuple (the arguments), a dict (keyword arguments), or anything else (the only argument); inputs are
        taken as there is room for them, so they may come from a generator. A run that fails does not end the others: its
        `error` is kept, and its `value` raises it. With a seed the i-th run gets `seed + i`. `progress` draws a bar on
        standard error; left out, it does where that is a terminal.
        """
        options = self._options.but(engine=engine, seed=seed, budget=budget)
        return run_batch(self._body, options, inputs, concurrency=concurrency, progress=progress)

    async def arun_batch(
        self,
        inputs: Iterable[Any],
        *,
        engine: EngineLike | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
        concurrency: int = 32,
        progress: bool | None = None,
    ) -> list[Run[T]]:
        """The same without blocking the loop: an async program's runs share it, a sync one's have threads. Cancelling it cancels them."""
        options = self._options.but(engine=engine, seed=seed, budget=budget)
        return await run_batch_async(self._body, options, inputs, concurrency=concurrency, progress=progress)

    def _check_state(self, s: object) -> None:
        if not isinstance(s, State):
            text = f"{self.__qualname__}() was called without a state, with {s!r}: write {self.__qualname__}.run(...)"
            raise TypeError(f"{text}, or inside a program {self.__qualname__}(s, ...)")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.__qualname__}>"


class Function(Program[P, T]):
    """A program written as a plain function. Called with a state it runs as a part of that program."""

    def __call__(self, s: State, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run as a part of the program that `s` belongs to."""
        self._check_state(s)
        return cast("T", self._body(s, *args, **kwargs))


class AsyncFunction(Program[P, T]):
    """A program written as an `async def`."""

    def __call__(self, s: State, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Run as a part of the program that `s` belongs to."""
        self._check_state(s)
        return cast("Coroutine[Any, Any, T]", self._body(s, *args, **kwargs))


@overload
def function(  # type: ignore[overload-overlap]  # a coroutine is a T as well; the first match is meant
    body: Callable[Concatenate[State, P], Coroutine[Any, Any, T]],
    /,  # pyright: ignore[reportOverlappingOverload]
) -> AsyncFunction[P, T]: ...
@overload
def function(body: Callable[Concatenate[State, P], T], /) -> Function[P, T]: ...
def function(body: Callable[..., Any], /) -> Any:
    """Make a program of a function whose first parameter is the `State` of its root branch.

    Raises TypeError when there is no such parameter, or when another one has a name that `run` needs for itself.
    """
    parameters = list(inspect.signature(body).parameters)
    if not parameters:
        raise TypeError(f"a program needs a state as its first parameter, as in def {body.__name__}(s: rs.State, ...)")
    if parameters[0] in ("self", "cls"):
        raise TypeError(
            f"{body.__name__}() is a method; a program's first parameter is its state: write a function, and pass it the object"
        )
    taken = [name for name in parameters[1:] if name in RESERVED]
    if taken:
        raise TypeError(
            f"{body.__name__}() can't have a parameter named {taken[0]}: run({taken[0]}=...) has its own meaning; rename it"
        )
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise TypeError(f"{body.__name__}() yields; a program returns its result (stream() gives text as it comes)")
    kind = AsyncFunction if inspect.iscoroutinefunction(body) else Function
    return kind(body, Options())
