"""An order for what coroutines of one loop do at once: each works as it likes, and speaks when its turn has come."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


class Turns:
    """Turns are given in the order of `take`."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: list[asyncio.Event] = []

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
        """A turn, over with the block; what it gives waits until all earlier ones are over."""
        earlier, over = list(self._open), asyncio.Event()
        self._open.append(over)

        async def come() -> None:
            for one in earlier:
                await one.wait()

        try:
            yield come
        finally:
            self._open.remove(over)
            over.set()
