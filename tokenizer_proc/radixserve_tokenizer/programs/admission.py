"""Who may start a program. One small class, so that tenants and their quotas have a place to go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Open

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_SMOOTHING = 0.1
_MAX_GAP_S = 5.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a program may not start; `status` is an HTTP status."""

    status: int
    code: str
    message: str
    retry_after_s: float = 0.0


class Admission:
    """Limits on programs and on generations that wait for their first token. Generations of an admitted program are only counted."""

    def __init__(self, *, max_programs: int, max_queued: int) -> None:
        self._max_programs = max_programs
        self._max_queued = max_queued
        self._first_token_gap_s = 0.1
        self._last_first_token: float | None = None
        self.num_programs = 0
        self.num_queued = 0
        """Generations that wait for their first token."""
        self.num_refused = 0

    def open(self, request: Open) -> Refusal | None:
        """Admit a program (None), or say why not."""
        refusal = self._refusal(request)
        if refusal is None:
            self.num_programs += 1
        else:
            self.num_refused += 1
        return refusal

    def close(self) -> None:
        """An admitted program ended."""
        self.num_programs -= 1

    def enqueue(self) -> None:
        """A generation begins to wait for its first token."""
        self.num_queued += 1

    def dequeue(self, now: float, *, first_token: bool) -> None:
        """A generation waits no more: its first token came, or it ended without one."""
        self.num_queued -= 1
        if first_token:
            if self._last_first_token is not None:
                gap_s = min(now - self._last_first_token, _MAX_GAP_S)  # an idle night says nothing about the next queue
                self._first_token_gap_s += _SMOOTHING * (gap_s - self._first_token_gap_s)
            self._last_first_token = now

    def _refusal(self, request: Open) -> Refusal | None:
        if request.credits < 0:
            return Refusal(400, "invalid_value", f"credits must be 0 or more, not {request.credits}")
        if self.num_programs >= self._max_programs:
            message = f"the server already runs {self.num_programs} programs; close some or try again later"
            return Refusal(503, "overloaded", message, _MIN_RETRY_S)
        if self.num_queued >= self._max_queued:
            message = f"{self.num_queued} generations wait for their first token (limit {self._max_queued}); try again later"
            return Refusal(503, "overloaded", message, self._retry_after_s())
        return None

    def _retry_after_s(self) -> float:
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, self.num_queued * self._first_token_gap_s))
