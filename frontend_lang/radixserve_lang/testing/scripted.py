"""`Scripted`: an engine whose answers a test writes down."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from radixserve_lang.client import Client
from radixserve_lang.testing.answers import MismatchError, outcome_of
from radixserve_lang.testing.desk import Desk
from radixserve_lang.testing.errors import ScriptError
from radixserve_lang.testing.inprocess import NO_MODEL, InProcess
from radixserve_lang.testing.spending import Spending
from radixserve_tokenizer.protocol import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from radixserve_lang.testing.answers import Answer
    from radixserve_lang.testing.desk import Outcome
    from radixserve_lang.testing.questions import Question

_NOTHING = object()
_SHOWN = 3


class Scripted:
    """An engine without a model: ops get their answers from a script. No process, no socket.

    ```python
    with rs.testing.Scripted(["Paris", {"answer": 4}, rs.testing.call(search, query="x")]) as engine:
        assert quiz.run(engine=engine).value == ...
    ```

    Answers are taken in the order in which the ops are sent, which for a program of one thread is the order in which it
    makes them. `branches` has scripts of its own for branches by their path, and `at` for ops by their place: the name of
    the function, or `"file.py:12"`. They come before `script`, which may also be a function of the text that a branch
    holds. `then` answers what the scripts are too short for; without it that is an error, at the read and when the engine
    is closed. What is left over when it is closed raises `ScriptError`.
    """

    def __init__(
        self,
        script: Sequence[Answer] | Callable[[str], Answer] = (),
        *,
        branches: Mapping[tuple[int, ...], Sequence[Answer]] | None = None,
        at: Mapping[str, Sequence[Answer]] | None = None,
        then: Answer = _NOTHING,
    ) -> None:
        if isinstance(script, str):
            raise TypeError("a script is a list of answers; write Scripted([...])")
        self._function = script if callable(script) else None
        self._script: deque[Answer] = deque(() if callable(script) else script)
        self._branches = {path: deque(answers) for path, answers in (branches or {}).items()}
        self._places = {place: deque(answers) for place, answers in (at or {}).items()}
        self._then = then
        self._problems: list[str] = []
        self._spending = Spending(time.monotonic)
        self._desk = Desk(self._answer, on_end=self._spending.forget)
        self._client = Client.over(InProcess(self._desk, NO_MODEL, url="scripted"))

    @property
    def client(self) -> Client:
        """The connection that programs run over."""
        return self._client

    def close(self) -> None:
        """Raise `ScriptError` for what was left over or had no answer. A second call does nothing."""
        problems, self._problems = self._end(), []
        if problems:
            raise ScriptError("; ".join(problems))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._end()  # the test has failed already, and says why

    def _end(self) -> list[str]:
        self._client.close()
        left = [("the script", self._script)]
        left += [(f"the script of branch {path}", answers) for path, answers in self._branches.items()]
        left += [(f"the script at {place!r}", answers) for place, answers in self._places.items()]
        problems = list(self._problems)
        for name, answers in left:
            if answers:
                shown = ", ".join(repr(answer) for answer in list(answers)[:_SHOWN]) + (", ..." if len(answers) > _SHOWN else "")
                problems.append(f"{name} has {len(answers)} answer{'s' if len(answers) > 1 else ''} left: {shown}")
                answers.clear()
        return problems

    # ---- on the engine's thread ----------------------------------------------------------------------------------

    def _answer(self, asked: Question) -> Outcome:
        over = self._spending.refusal(asked)
        if over is not None:
            return over
        name, answers = self._script_of(asked)
        if answers:
            answer = answers.popleft()
        elif self._function is not None and answers is self._script:
            answer = self._function
        elif self._then is not _NOTHING:
            answer = self._then
        else:
            return self._problem("script_exhausted", f"{name} has no answer left for {asked.place}")
        try:
            outcome = outcome_of(answer, asked)
        except MismatchError as error:
            return self._problem("script_mismatch", f"{asked.place}: {error}")
        return self._spending.spend(asked, outcome)

    def _problem(self, code: str, message: str) -> Failed:
        self._problems.append(message)
        return Failed(program=0, op=0, code=code, message=message, status=500)

    def _script_of(self, asked: Question) -> tuple[str, deque[Answer]]:
        if asked.path in self._branches:
            return f"the script of branch {asked.path}", self._branches[asked.path]
        for place, answers in self._places.items():
            if _is_at(asked.op.where, place):
                return f"the script at {place!r}", answers
        return "the script", self._script


def _is_at(where: str, place: str) -> bool:
    """Whether `file.py:12 in function` is at the place: the function, or the end of the path with the line."""
    line, _, function = where.partition(" in ")
    return function == place or f"/{line}".endswith(f"/{place}")
