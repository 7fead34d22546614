"""Every error of the DSL and its client.

RadixServeError
├── ConnectionFailedError       no server answered, or it speaks another version
├── QueryFailedError            a control message was answered with an error
├── ClientClosedError           the client or channel was used after `close`, or in a forked process
├── ProgramError                the whole program is over; every read of it raises this
│   ├── ProgramRefusedError     the server did not admit it (status, code, retry_after_s)
│   ├── ServerGoneError         the server stopped, restarted or fell silent
│   ├── TakenOverError          another run has taken it up with its resume_key
│   └── ProgramEndedError       a value is read, or a state used, after the program returned or was cancelled
├── OpError                     one op failed (op, where, code, status, partial)
│   ├── OpCancelledError        its branch was cancelled or its fork block was left
│   ├── OpSkippedError          something before it on its branch failed; `__cause__` is that error
│   ├── BudgetExceededError     it would have gone beyond the program's budget
│   └── InvalidValueError       the text does not fit the type that was asked for, or was refused by `validate`
├── ToolError                   a tool raised, or returned what can't be told to the model; `__cause__` is what it raised
├── VarInTextError              a `Var` was used like its value (also a TypeError)
└── BranchDroppedError          a state is used after it was cancelled or its fork block was left (also a RuntimeError)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_lang.advice import advice, refusal_advice

if TYPE_CHECKING:
    from typing import Self

    from radixserve_lang.budget import Budget


class RadixServeError(Exception):
    """Base of everything raised here on purpose."""


class ConnectionFailedError(RadixServeError):
    """No server answered in time, or it refuses this client's version."""


class QueryFailedError(RadixServeError):
    """A control message failed; `status` is an HTTP status (503: no server)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ClientClosedError(RadixServeError):
    """The client or channel is closed, or belongs to another process."""


class ProgramError(RadixServeError):
    """The whole program is over. At a read, `place` names the op that was waited for and `partial` the text it had."""

    place = ""
    partial = ""
    advice = "This is a mistake of the client or the server, not of the program: please report it."

    def at(self, place: str, partial: str) -> Self:
        """The same, as the reader of one op sees it."""
        clone = type(self).__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone.args = self.args
        clone.place = place
        clone.partial = partial
        return clone

    def __str__(self) -> str:
        text = super().__str__()
        if self.place:
            text += f"\n  waiting for {self.place}"
        if self.advice:
            text += f"\n  {self.advice}"
        if self.partial:
            text += f"\n  text so far: {_shorten(self.partial)!r}"
        return text


class ProgramRefusedError(ProgramError):
    """The server did not admit the program. `status` is an HTTP status; after `retry_after_s` it may be tried again."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float) -> None:
        hint = f" Try again in {retry_after_s:.3g} s." if retry_after_s > 0 else ""
        super().__init__(f"the server refused this program ({status} {code}): {message}{hint}")
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.advice = refusal_advice(status, retry_after_s)


class ServerGoneError(ProgramError):
    """The server ended, restarted or fell silent while the program was running. Run it again; with a seed it repeats."""

    advice = "Run the program again when the engine is back; with the same seed= it repeats."


class ProgramEndedError(ProgramError):
    """The program has returned, failed or been cancelled; what it had not finished by then has no value."""

    advice = "Read values and use states inside the program, or return the Vars: they are waited for."


class TakenOverError(ProgramError):
    """Another process, or another run in this one, has taken the program up with its `resume_key`: its values come there."""

    advice = "A resume_key is for one run at a time: give a new one to each."


class OpError(RadixServeError):
    """One op of a program failed.

    `kind` and `where` name the op and its line, `code`, `message` and `status` are the server's, `partial` is the
    text that had been generated, and `retryable` says whether the same op may work later.
    """

    def __init__(
        self,
        kind: str,
        where: str,
        code: str,
        message: str,
        *,
        status: int = 500,
        param: str = "",
        partial: str = "",
        retryable: bool = False,
    ) -> None:
        text = f"{kind} at {where} failed ({code}): {message}"
        if param:
            text += f" [{param}]"
        hint = advice(code, status, retryable=retryable)
        if hint:
            text += f"\n  {hint}"
        if partial:
            text += f"\n  text so far: {_shorten(partial)!r}"
        super().__init__(text)
        self.kind = kind
        self.where = where
        self.code = code
        self.message = message
        self.status = status
        self.param = param
        self.partial = partial
        self.retryable = retryable


class OpCancelledError(OpError):
    """The op's branch was cancelled before it was done."""


class OpSkippedError(OpError):
    """An earlier op of the branch failed, so this one did not run. `__cause__` is that failure, where it is known."""


class BudgetExceededError(OpError):
    """The op would have gone beyond the program's budget; so will whatever comes after it.

    `budget` is what was allowed and `used` what this client has seen used: output tokens and calls of finished ops, and
    seconds since the program began.
    """

    budget: Budget | None = None
    used: Budget | None = None

    def spent(self, budget: Budget, used: Budget) -> None:
        """Say what was allowed and what was used."""
        self.budget = budget
        self.used = used
        self.args = (f"{self.args[0]}\n  allowed: {budget}; used by ops that are done: {used}",)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A value that was refused: its text, and why."""

    text: str
    problem: str


class InvalidValueError(OpError):
    """The generated text is not a value of the type asked for, or `validate` refused it. `partial` is all of it; `__cause__` says what is wrong.

    `attempts` has the text and the problem of each attempt, the last one included.
    """

    attempts: tuple[Attempt, ...] = ()


class ToolError(RadixServeError):
    """A tool raised (then `__cause__` is what it raised), or what it returned can't be told to the model.

    `tool` is its name, `where` the line of the program that called it, `op` the generation that asked for the call.
    """

    def __init__(self, tool: str, where: str, op: str, problem: str) -> None:
        super().__init__(
            f"tool {tool}(), called at {where} for the {op}, {problem}\n"
            f"  Handle it inside the tool, or write s.call(call, on_error='append') to let the model see it."
        )
        self.tool = tool
        self.where = where
        self.op = op
        self.problem = problem


class VarInTextError(RadixServeError, TypeError):
    """A `Var` was formatted, compared or tested as if it were its value."""


class BranchDroppedError(RadixServeError, RuntimeError):
    """A branch is used after it was dropped."""


def _shorten(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"...{text[-limit:]}"
