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
_EXPECT_S = 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a program may not start; `status` is an HTTP status."""

    status: int
    code: str
    message: str
    retry_after_s: float = 0.0


class Admission:
    """Limits on programs and on generations that wait for their first token. Generations of an admitted program are only counted.

    A program that was just admitted counts as one that waits, until its first generation begins or `_EXPECT_S` have passed:
    where many clients send `Open` before their ops, the queue would else be empty for all of them.
    """

    def __init__(self, *, max_programs: int, max_queued: int) -> None:
        self._max_programs = max_programs
        self._max_queued = max_queued
        self._first_token_gap_s = 0.1
        self._last_first_token: float | None = None
        self._expected: dict[int, float] = {}
        """Programs without a generation so far, and until when they count; in the order in which that ends."""
        self.num_programs = 0
        self.num_queued = 0
        """Generations that wait for their first token."""
        self.num_refused = 0

    def open(self, request: Open, program: int, now: float) -> Refusal | None:
        """Admit a program (None), or say why not. `program` is its number in this process."""
        refusal = self._refusal(request, now)
        if refusal is None:
            self.num_programs += 1
            self._expected[program] = now + _EXPECT_S
        else:
            self.num_refused += 1
        return refusal

    def close(self, program: int) -> None:
        """An admitted program ended."""
        self.num_programs -= 1
        self._expected.pop(program, None)

    def enqueue(self, program: int) -> None:
        """A generation of this program begins to wait for its first token."""
        self.num_queued += 1
        self._expected.pop(program, None)

    def dequeue(self, now: float, *, first_token: bool) -> None:
        """A generation waits no more: its first token came, or it ended without one."""
        self.num_queued -= 1
        if first_token:
            if self._last_first_token is not None:
                gap_s = min(now - self._last_first_token, _MAX_GAP_S)  # an idle night says nothing about the next queue
                self._first_token_gap_s += _SMOOTHING * (gap_s - self._first_token_gap_s)
            self._last_first_token = now

    def _refusal(self, request: Open, now: float) -> Refusal | None:
        if request.credits < 0:
            return Refusal(400, "invalid_value", f"credits must be 0 or more, not {request.credits}")
        if self.num_programs >= self._max_programs:
            message = f"the server already runs {self.num_programs} programs; close some or try again later"
            return Refusal(503, "overloaded", message, _MIN_RETRY_S)
        waiting = self.num_queued + self._num_expected(now)
        if waiting >= self._max_queued:
            message = f"{waiting} generations wait for their first token (limit {self._max_queued}); try again later"
            return Refusal(503, "overloaded", message, min(_MAX_RETRY_S, max(_MIN_RETRY_S, waiting * self._first_token_gap_s)))
        return None

    def _num_expected(self, now: float) -> int:
        while self._expected:
            program, until = next(iter(self._expected.items()))
            if until > now:
                break
            del self._expected[program]
        return len(self._expected)
