"""Python's collector of cycles, kept from holding up the loop.

A full collection looks at every object that open programs hold: a third of a second for a million branches, in one go and for
everybody. It finds next to nothing, as what a program holds goes when its last reference does. So what has survived a collection that took long
is not looked at again for a while.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LONG_S = 0.02
#: After so long all is looked at once more, so that cycles that there may be are found some day.
_AGAIN_S = 3600.0


class Collector:
    """Watches collections once it is installed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = 0.0
        self._frozen_at: float | None = None

    def install(self) -> None:
        """Begin. What is there now is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """As `gc.callbacks` are called."""
        now = self._clock()
        if phase == "start":
            self._began = now
        elif info["generation"] == 2 and now - self._began > _LONG_S:
            if self._frozen_at is None:
                self._frozen_at = now
            elif now - self._frozen_at > _AGAIN_S:
                self._frozen_at = None
                gc.unfreeze()
                return
            gc.freeze()
