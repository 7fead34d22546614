"""Values that are judged before anything goes on from them: accepted, tried again, or refused for good.

What pydantic says is known on the I/O thread. A `validate` of the user's may take its time, so it runs in whichever
thread (or loop) of the program next waits for anything of that program; no thread is added.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve_lang.errors import Attempt, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from radixserve_lang.dispatch import Dispatch
    from radixserve_lang.records import Build, OpRecord
    from radixserve_tokenizer.protocol import Done, ToolSpec

#: What a validator raises to refuse a value, as in pydantic; anything else it raises is a mistake in it.
REFUSALS = (ValueError, AssertionError)


@dataclass(slots=True, eq=False)
class Check:
    """How one generation's value is judged, and what has been refused so far."""

    parse: Callable[[Done], Any]
    validate: Callable[[Any], object] | None
    retries: int
    advice: str
    """What to do when all attempts are refused."""
    tools: tuple[ToolSpec, ...]
    """Those of the branch before it."""
    build: Build | None = None
    """Makes the message of the next attempt."""
    value: Any = None
    """Once it is accepted."""
    refused: list[Done] = field(default_factory=list["Done"])
    attempts: list[Attempt] = field(default_factory=list[Attempt])


class Verdicts:
    """A program's values under judgement."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._due: deque[tuple[OpRecord, Done]] = deque()
        self._rings: dict[Callable[[], None], None] = {}
        self._lock = threading.Lock()

    def hear(self, record: OpRecord, done: Done) -> None:
        """A value has come. On the I/O thread."""
        check = record.check
        assert check is not None
        if done.op != record.number:
            return  # an attempt that was decided before is told again, after a connection was lost
        problem = _parsed(check, done)
        if problem is not None or check.validate is None:
            self._decide(record, done, problem)
            return
        with self._lock:
            self._due.append((record, done))
            rings = list(self._rings)
        for ring in rings:
            ring()

    @contextlib.contextmanager
    def listening(self, ring: Callable[[], None]) -> Generator[None]:
        """Have `ring` called when there is something for `work` to do."""
        with self._lock:
            self._rings[ring] = None
        try:
            yield
        finally:
            with self._lock:
                self._rings.pop(ring, None)

    def work(self) -> None:
        """Run the user's `validate` on what has come. By a thread that would wait otherwise."""
        while True:
            try:
                record, done = self._due.popleft()
            except IndexError:
                return
            is_due = record.cell is not None and record.cell.outcome is None and done.op == record.number
            if is_due and record.check is not None:
                self._decide(record, done, _refusal(record.check))

    def _decide(self, record: OpRecord, done: Done, problem: Exception | None) -> None:
        check, cell = record.check, record.cell
        assert check is not None
        assert cell is not None
        with self._dispatch.in_order:
            if cell.outcome is not None or done.op != record.number:
                return  # cancelled, the program is over, or this was told twice
            if problem is None:
                self._dispatch.finish(record)
                cell.settle(done)
                return
            check.refused.append(done)
            check.attempts.append(Attempt(done.value, str(problem) or type(problem).__name__))
            if len(check.attempts) <= check.retries and isinstance(problem, REFUSALS):
                assert check.build is not None
                self._dispatch.again(record, check.build)
                return
            error = _refused_for_good(record, check, done, problem)
            self._dispatch.give_up(record, error)
            cell.settle(error)


def _parsed(check: Check, done: Done) -> Exception | None:
    """Make the check's value of the text; what is wrong with it."""
    try:
        check.value = check.parse(done)
    except Exception as error:
        return error
    return None


def _refusal(check: Check) -> Exception | None:
    """What the user's own function says of the value."""
    assert check.validate is not None
    try:
        return ValueError("validate() returned False") if check.validate(check.value) is False else None
    except Exception as error:
        return error


def _refused_for_good(record: OpRecord, check: Check, done: Done, problem: Exception) -> InvalidValueError:
    count = len(check.attempts)
    if not isinstance(problem, REFUSALS):
        return _error(record, done, problem, _no_verdict(problem), _VERDICT_ADVICE, tuple(check.attempts))
    tried = "" if count == 1 else f"none of {count} attempts gave a valid value. The last: "
    return _error(record, done, problem, tried + _misfit(problem), check.advice, tuple(check.attempts))


def invalid_value(record: OpRecord, done: Done, problem: Exception) -> InvalidValueError:
    """The error for a text that is no value of what was asked for, where nothing is tried again."""
    said, advice = _misfit(problem), "Ask for what the model can write, or give retries=."
    if not isinstance(problem, REFUSALS):
        said, advice = _no_verdict(problem), _VERDICT_ADVICE
    return _error(record, done, problem, said, advice, (Attempt(done.value, str(problem)),))


_VERDICT_ADVICE = "Raise ValueError in it to refuse a value."


def _no_verdict(problem: Exception) -> str:
    return f"the validator raised {type(problem).__name__}, which is no verdict: {problem}"


def _misfit(problem: Exception) -> str:
    return f"the text is not a value of what was asked for: {problem or type(problem).__name__}"


def _error(
    record: OpRecord, done: Done, problem: Exception, said: str, advice: str, attempts: tuple[Attempt, ...]
) -> InvalidValueError:
    cut = done.finish_reason == "length"
    message = f"{said}\n  {'It was cut at max_tokens: raise that.' if cut else advice}"
    error = InvalidValueError(record.kind, record.where, "invalid_value", message, partial=done.value)
    error.attempts = attempts
    error.__cause__ = problem
    return error
