"""Values in the order in which they come."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from radixserve_lang.cell import LoopEvent
from radixserve_lang.var import Var

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator

T = TypeVar("T")


class Completions(Generic[T]):
    """Iterate it once, with `for` or `async for`."""

    def __init__(self, variables: Iterable[Var[T]]) -> None:
        self._settled: deque[Var[T]] = deque()
        self._ring: Callable[[], None] = _nobody
        awaited = list(variables)
        for one in awaited:
            if not isinstance(one, Var):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"as_completed() takes Vars, as gen() returns them, not {one!r}")
        self._num_left = len(awaited)
        self._verdicts = list({id(one.verdicts): one.verdicts for one in awaited}.values())
        # Listening comes before flushing, so that the order is that of arrival.
        for variable in awaited:
            variable.when_settled(functools.partial(self._arrived, variable))
        for variable in awaited:
            variable.flush()

    def __iter__(self) -> Iterator[Var[T]]:
        changed = threading.Event()
        with self._listening(changed.set):
            while self._num_left > 0:
                self._judge()
                while not self._settled:
                    changed.wait()
                    changed.clear()
                    self._judge()
                self._num_left -= 1
                yield self._settled.popleft()

    async def __aiter__(self) -> AsyncIterator[Var[T]]:
        changed = LoopEvent()
        with self._listening(changed.set):
            while self._num_left > 0:
                self._judge()
                while not self._settled:
                    await changed.wait()
                    changed.clear()
                    self._judge()
                self._num_left -= 1
                yield self._settled.popleft()

    @contextlib.contextmanager
    def _listening(self, ring: Callable[[], None]) -> Generator[None]:
        """To arrivals, and to values that come and are to be judged before they count."""
        self._ring = ring
        with contextlib.ExitStack() as stack:
            for verdicts in self._verdicts:
                stack.enter_context(verdicts.listening(ring))
            yield

    def _judge(self) -> None:
        for verdicts in self._verdicts:
            verdicts.work()

    def _arrived(self, variable: Var[T]) -> None:
        self._settled.append(variable)
        self._ring()


def _nobody() -> None:
    """Before the iteration."""


def as_completed(variables: Iterable[Var[T]]) -> Completions[T]:
    """Each Var when its read would not wait any more, the earliest first. One that failed comes too: its read raises."""
    return Completions(variables)
