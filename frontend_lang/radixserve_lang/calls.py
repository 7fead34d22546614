"""Calls that the model made: what the program gets, and what it tells the model afterwards."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import PydanticSerializationError, to_json

from radixserve_lang.errors import ToolError
from radixserve_lang.otel import traced_tool
from radixserve_lang.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve_lang.tools import AnyTool
    from radixserve_tokenizer.protocol import Done, ToolCall

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A call of one of the tools that a `gen` offered. `s.call(call)` runs it and tells the model what came of it."""

    tool: AnyTool[R_co]
    """What is called."""
    name: str
    """The tool's name."""
    arguments: dict[str, Any]
    """By parameter, as checked Python values; a parameter that the model left out has its default."""
    id: str
    """By which the tool message refers to the call."""
    text: str
    """The arguments as the model wrote them: JSON."""
    place: str = ""
    """The op and line that asked for it."""


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """What `s.call(..., on_error="append")` returns for a tool that raised."""

    name: str
    """The tool's name."""
    error: Exception
    """What it raised."""
    text: str
    """What the model was told."""


class CallReader:
    """From the end of a `gen` with tools to its value. One for each op."""

    def __init__(self, tools: Mapping[str, AnyTool[Any]], place: str, *, needs_call: bool, parallel: bool) -> None:
        self._tools = tools
        self._place = place
        self._needs_call = needs_call
        self._parallel = parallel

    def __call__(self, done: Done) -> Any:
        """One call, a list of calls, or the text where no call was made; ValueError for what is no valid call."""
        if not done.calls and not self._needs_call:
            return done.value
        if not done.calls:
            raise ValueError(f"the model made no call, but wrote {done.value!r}")
        calls = [self._call(call) for call in done.calls]
        return calls if self._parallel else calls[0]

    def _call(self, call: ToolCall) -> Call[Any]:
        tool = self._tools.get(call.name)
        if tool is None:
            raise ValueError(f"the model called {call.name!r}, which is none of {', '.join(self._tools)}")
        try:
            arguments = tool.parse(call.arguments)
        except ValueError as error:
            raise ValueError(f"the arguments of {call.name}() do not fit: {error}") from error
        return Call(tool, call.name, arguments, call.id, call.arguments, self._place)


def run_tool(call: Call[Any], where: str) -> Any:
    """What the tool returns; raises `ToolError`, and TypeError for an async tool."""
    try:
        with traced_tool(call.name, call.id):
            result = call.tool.run(call.arguments)
    except Exception as error:
        raise failed_tool(call, where, error) from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"tool {call.name}() is async: write await s.acall(call) at {where}")
    return result


async def finish_tool(call: Call[Any], where: str) -> Any:
    """The same in an event loop: an async tool runs in it, a plain one in a thread."""
    try:
        with traced_tool(call.name, call.id):
            if call.tool.is_async:
                result = call.tool.run(call.arguments)
            else:
                result = await asyncio.wrap_future(in_thread(lambda: call.tool.run(call.arguments)))
            return await result if inspect.isawaitable(result) else result
    except Exception as error:
        raise failed_tool(call, where, error) from error


def failed_tool(call: Call[Any], where: str, error: Exception) -> ToolError:
    """The error that says whose fault it is."""
    return ToolError(call.name, where, call.place, f"raised {type(error).__name__}: {error}")


def result_text(call: Call[Any], result: Any, where: str) -> str:
    """What the model reads: a string as it is, anything else as JSON. Raises `ToolError`."""
    if isinstance(result, str):
        try:
            result.encode()
        except UnicodeEncodeError as error:
            problem = f"returned text with half a character in it ({error}); decode it with errors='replace'"
            raise ToolError(call.name, where, call.place, problem) from error
        return result
    try:
        return to_json(result).decode()
    except PydanticSerializationError as error:
        raise ToolError(
            call.name,
            where,
            call.place,
            f"returned a {type(result).__name__}, which can't be told as JSON ({error}); return text",
        ) from error
