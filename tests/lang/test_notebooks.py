"""Programs in notebooks: cells run inside an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

if TYPE_CHECKING:
    from collections.abc import Iterator

CELLS = {
    "sync": "run = ask.run('hi', engine=engine); run.value",
    "async program": "run = ask_async.run('hi', engine=engine); run.value",
    "top-level await": "run = await ask.arun('hi', engine=engine); run.value",
    "stream": "''.join(ask.stream('hi', engine=engine))",
    "async stream": "''.join([piece async for piece in ask_async.stream('hi', engine=engine)])",
    "batch": "[run.value for run in ask.run_batch(['hi'] * 3, engine=engine)][1]",
    "async batch": "[run.value for run in await ask_async.arun_batch(['hi'] * 3, engine=engine)][1]",
}

SETUP = """
import radixserve_lang as rs

@rs.function
def ask(s: rs.State, question: str) -> str:
    s += rs.user(question)
    return s.gen().value

@rs.function
async def ask_async(s: rs.State, question: str) -> str:
    s += rs.user(question)
    return await s.gen()

engine = rs.testing.Scripted(then='hello')
"""


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell()
    assert made.run_cell(SETUP).success
    yield made
    made.run_cell("engine.close()")
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("cell", CELLS)
def test_cells(shell: InteractiveShell, cell: str) -> None:
    # A kernel runs every cell inside its loop, also those that don't await.
    result: Any = _in_a_loop(shell, CELLS[cell])
    assert result.success, result.error_in_exec
    assert result.result == "hello"


def test_a_trace_is_shown_as_html(shell: InteractiveShell) -> None:
    result: Any = _in_a_loop(shell, "ask.run('<hi>', engine=engine).trace")
    assert shell.display_formatter is not None
    data, _ = shell.display_formatter.format(result.result)
    assert "&lt;hi&gt;" in data["text/html"]


def _in_a_loop(shell: InteractiveShell, code: str) -> Any:
    import asyncio

    async def kernel() -> Any:
        return await shell.run_cell_async(code, transformed_cell=shell.transform_cell(code))

    return asyncio.run(kernel())
