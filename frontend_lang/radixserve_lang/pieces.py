"""The text of a value as it comes, whatever becomes of it in the end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from radixserve_lang.cell import LoopEvent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from radixserve_lang.cell import Cell
    from radixserve_lang.session import Session


def iterate(session: Session, cell: Cell) -> Iterator[str]:
    """From the beginning to the outcome; a failure just ends it."""
    changed = threading.Event()
    changed.set()  # there may be text already
    cell.watch(changed.set)
    session.stream_begins()
    try:
        with session.verdicts.listening(changed.set):
            count, last = 0, False
            while not last:
                changed.wait()
                changed.clear()
                session.verdicts.work()
                pieces, last = cell.pieces_from(count)
                count += len(pieces)
                yield from pieces
    finally:
        cell.unwatch(changed.set)
        session.stream_ends()


async def iterate_async(session: Session, cell: Cell) -> AsyncIterator[str]:
    """The same in an event loop."""
    changed = LoopEvent()
    changed.set()
    cell.watch(changed.set)
    session.stream_begins()
    try:
        with session.verdicts.listening(changed.set):
            count, last = 0, False
            while not last:
                await changed.wait()
                changed.clear()
                session.verdicts.work()
                pieces, last = cell.pieces_from(count)
                count += len(pieces)
                for piece in pieces:
                    yield piece
    finally:
        cell.unwatch(changed.set)
        session.stream_ends()
