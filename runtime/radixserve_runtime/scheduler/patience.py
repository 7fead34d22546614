"""What a tenant's patience goes by (holding.py): how long its programs pause, for how long nothing ran for their sake, and how often that was in vain.

Idleness fades with the time of a usual pause, so that what counts is about what was spent within one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: How fast the length of pauses is learned.
_RATE = 0.1

#: After a wait that was in vain, what remains of the patience.
_LESS = 0.5

#: What the time at which idleness was to come to something may be early by.
_ROUNDING = 1e-9


@dataclass(slots=True)
class Patience:
    """One tenant's."""

    newcomer_s: float = -math.inf
    """When a newcomer of it was admitted last."""
    part: float = 1.0
    """Of the whole patience, what is left after waits in vain."""
    _mean_s: float = 0.0
    """Of the pauses."""
    _mean_squared: float = 0.0
    """Of their squares."""
    _idle_s: float = 0.0
    """For how long nothing ran lately while newcomers were held back, as it was at `_idle_at_s`."""
    _idle_at_s: float = 0.0

    @property
    def pause_s(self) -> float:
        """The usual pause, as who looks in at some moment finds it: long ones count for longer. Infinite while nobody has come back."""
        return self._mean_squared / self._mean_s if self._mean_s > 0.0 else math.inf

    def came_back(self, after_s: float) -> None:
        """A program with a lease went on after a pause of so many seconds."""
        if after_s > 0.0:
            rate = _RATE if self._mean_s > 0.0 else 1.0
            self._mean_s += rate * (after_s - self._mean_s)
            self._mean_squared += rate * (after_s * after_s - self._mean_squared)

    def idled(self, begin_s: float, end_s: float) -> None:
        """Nothing ran between these times, and a newcomer was held back."""
        self._fade(begin_s)
        pause_s, length_s = self.pause_s, max(0.0, end_s - begin_s)
        if pause_s == math.inf:
            self._idle_s += length_s
        else:
            self._idle_s = pause_s - (pause_s - self._idle_s) * math.exp(-length_s / pause_s)
        self._idle_at_s = max(begin_s, end_s)

    def idle_left_s(self, now_s: float, enough_s: float) -> float:
        """For how long nothing may run from now on until the idleness of about one pause comes to `enough_s`; infinite if it never does."""
        self._fade(now_s)
        if self._idle_s >= (1.0 - _ROUNDING) * enough_s:
            return 0.0
        pause_s = self.pause_s
        if pause_s == math.inf:
            return enough_s - self._idle_s
        if enough_s >= pause_s:
            return math.inf
        return pause_s * math.log((pause_s - self._idle_s) / (pause_s - enough_s))

    def admitted(self, now_s: float, in_vain: bool) -> None:
        """A newcomer was admitted; `in_vain`: it takes leased pages."""
        self.newcomer_s = now_s
        if in_vain:
            self.part *= _LESS

    def renew(self) -> None:
        """Somebody has come back: it is whole again."""
        self.part = 1.0

    def _fade(self, now_s: float) -> None:
        self._idle_s *= math.exp(-max(0.0, now_s - self._idle_at_s) / self.pause_s)
        self._idle_at_s = max(now_s, self._idle_at_s)
