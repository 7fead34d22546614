"""`@rs.tool`: a function that the model may call."""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from radixserve_lang.docstrings import described
from radixserve_lang.parameters import Parameters
from radixserve_lang.threads import is_async
from radixserve_tokenizer.protocol import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: What model APIs take as the name of a function.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AnyTool(Generic[R_co]):
    """What `Tool` and `AsyncTool` have in common: a name, a description and a schema, made from a function."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, description: str | None = None) -> None:
        """Raises TypeError for a function whose parameters a model can't fill in, naming it, and ValueError for a name that can't be one."""
        own = getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", type(function).__name__)
        told = described(function)
        self.name = str(own) if name is None else name
        """As the model sees it."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} can't be the name of a tool: up to 64 letters, digits, _ and - can; give one, as in @rs.tool(name='search')"
            )
        self.description = told.description if description is None else description
        self._parameters = Parameters(function, self.name, told.parameters)
        self._function = function
        self.spec = ToolSpec(name=self.name, description=self.description, parameters=self._parameters.schema)
        """As the server gets it."""
        self.is_async = is_async(function)
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__module__ = getattr(function, "__module__", __name__)
        self.__wrapped__ = function

    @property
    def schema(self) -> str:
        """JSON Schema of the arguments, as JSON text."""
        return self._parameters.schema

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function; of an async one a coroutine."""
        return self._function(**arguments)

    def parse(self, arguments: str) -> dict[str, Any]:
        """Arguments by name from JSON text; ValueError when they don't fit."""
        return self._parameters.parse(arguments)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Tool(AnyTool[R_co], Generic[P, R_co]):
    """A tool made from a plain function; it is still called like it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function."""
        return cast("R_co", self._function(*args, **kwargs))


class AsyncTool(AnyTool[R_co], Generic[P, R_co]):
    """A tool made from an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call the function."""
        return cast("Coroutine[Any, Any, R_co]", self._function(*args, **kwargs))


class _ToolMaker:
    """`@rs.tool(name=...)`."""

    def __init__(self, name: str | None, description: str | None) -> None:
        self._name = name
        self._description = description

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine is an R as well; the first match is meant
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTool[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return _make(function, self._name, self._description)


@overload
def tool(  # type: ignore[overload-overlap]  # as above
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncTool[P, R]: ...
@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> _ToolMaker: ...
def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None) -> Any:
    """Make a tool of a function: `@rs.tool`, or `@rs.tool(name=..., description=...)`.

    Its parameters need annotations (anything that pydantic knows); descriptions come from the docstring (Google, NumPy or
    Sphinx style) and from `Annotated[..., Field(description=...)]`. Raises TypeError naming the parameter that can't be described.
    """
    return _ToolMaker(name, description) if function is None else _make(function, name, description)


def as_tools(tools: Sequence[Callable[..., Any] | AnyTool[Any]]) -> tuple[AnyTool[Any], ...]:
    """Tools and plain callables as tools; raises TypeError or ValueError for what can't be one, and for two of one name."""
    if not isinstance(tools, list | tuple):
        raise TypeError(f"tools= takes a tuple or list of tools, not {tools!r}; write tools=(search,)")
    made = tuple(one if isinstance(one, AnyTool) else _plain(one) for one in tools)
    if not made:
        raise ValueError("tools= needs at least one tool; leave it out to generate text")
    names = [one.name for one in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two tools are named {twice!r}; rename one, as in @rs.tool(name=...)")
    return made


def _make(function: Callable[..., Any], name: str | None, description: str | None) -> AnyTool[Any]:
    if not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError(f"{function!r} can't be a tool: it is not callable")
    if isinstance(function, AnyTool):
        function = cast("AnyTool[Any]", function).__wrapped__
    kind: type[AnyTool[Any]] = AsyncTool if is_async(function) else Tool
    return kind(function, name, description)


def _plain(function: Callable[..., Any]) -> AnyTool[Any]:
    return _remembered(function) if isinstance(function, Hashable) else _make(function, None, None)  # pyright: ignore[reportUnnecessaryIsInstance]


@functools.lru_cache(maxsize=64)
def _remembered(function: Callable[..., Any]) -> AnyTool[Any]:
    """A loop that passes the same function again and again makes its schema once."""
    return _make(function, None, None)
