"""Running Python beside the caller: a sync program under an event loop, an async one where a loop runs already."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def in_thread(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Run `work` in a daemon thread of its own, with the caller's context variables.

    Not asyncio's default executor: its few threads could all be held by programs that wait.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def body() -> None:
        try:
            result = context.run(work)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=body, name="radixserve-program", daemon=True).start()
    return future


def run_coroutine(start: Callable[[], Coroutine[Any, Any, T]], on_interrupt: Callable[[], None]) -> T:
    """Run a coroutine to its end from sync code. Where this thread's loop runs already (a notebook), another thread runs it.

    `on_interrupt` is called when the wait for that thread is broken off (Ctrl-C).
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(start())
    future = in_thread(lambda: asyncio.run(start()))
    try:
        return future.result()
    except BaseException:
        if not future.done():
            on_interrupt()
        raise
