"""Waiting for a value; whoever waits judges meanwhile what is to be judged."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from radixserve_lang.cell import LoopEvent

if TYPE_CHECKING:
    from radixserve_lang.cell import Cell
    from radixserve_lang.errors import RadixServeError
    from radixserve_lang.verdicts import Verdicts
    from radixserve_tokenizer.protocol import Done


def wait(verdicts: Verdicts, cell: Cell) -> Done | RadixServeError:
    """Block until the outcome."""
    if cell.outcome is None:
        ring = threading.Event()
        with verdicts.listening(ring.set):
            cell.when_settled(ring.set)
            verdicts.work()
            while cell.outcome is None:
                ring.wait()
                ring.clear()
                verdicts.work()
    assert cell.outcome is not None
    return cell.outcome


async def wait_async(verdicts: Verdicts, cell: Cell) -> Done | RadixServeError:
    """The same in an event loop."""
    if cell.outcome is None:
        ring = LoopEvent()
        with verdicts.listening(ring.set):
            cell.when_settled(ring.set)
            verdicts.work()
            while cell.outcome is None:
                await ring.wait()
                ring.clear()
                verdicts.work()
    assert cell.outcome is not None
    return cell.outcome
