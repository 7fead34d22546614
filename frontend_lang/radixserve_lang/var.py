"""A value that may not exist yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from radixserve_lang.errors import InvalidValueError, VarInTextError
from radixserve_lang.pieces import iterate, iterate_async
from radixserve_lang.verdicts import invalid_value
from radixserve_lang.waiting import wait, wait_async
from radixserve_tokenizer.protocol import Done

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from radixserve_lang.errors import RadixServeError
    from radixserve_lang.records import OpRecord
    from radixserve_lang.session import Session
    from radixserve_lang.state import State
    from radixserve_lang.verdicts import Verdicts
    from radixserve_tokenizer.protocol import FinishReason, TokenLogprob, Usage

T_co = TypeVar("T_co", covariant=True)


class Var(Generic[T_co]):
    """The result of `gen`, `select` or `score`. Making one waits for nothing; reading it does.

    `v.value` or `await v` is the value; `for piece in v` and `async for piece in v` give its text as it comes. A read
    raises what went wrong: `OpError`, `ProgramError` or, when the text does not fit the type, `InvalidValueError`.
    To use the value inside a prompt pass the Var itself: `s += rs.user("Merge:", v)` lets the server fill it in.
    """

    def __init__(self, session: Session, branch: State, record: OpRecord, convert: Callable[[Done], T_co]) -> None:
        assert record.cell is not None
        self._session = session
        self._branch = branch
        self.record = record
        """For this package."""
        self._cell = record.cell
        self._convert = convert
        self._converted: T_co | InvalidValueError | None = None

    @property
    def value(self) -> T_co:
        """The value; waits for it."""
        return self._value_of(self._wait())

    @property
    def branch(self) -> State:
        """The branch that it was asked of; with `n=` each has its own."""
        return self._branch

    @property
    def text(self) -> str:
        """The text of the value; waits for it. Nothing is parsed, so it does not raise `InvalidValueError`."""
        return self._wait().value

    @property
    def reasoning(self) -> str:
        """What the model wrote between its marks for reasoning, where it has such; waits for the end."""
        return self._wait().reasoning

    @property
    def usage(self) -> Usage:
        """Tokens and times of this op; waits for its end."""
        return self._wait().usage

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended: "stop", "length" or "tool_calls"; waits for its end."""
        return self._wait().finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token id that ended it, if one did; waits for its end."""
        return self._wait().stop_reason

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The sampled ids; waits for the end."""
        return self._wait().token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """One entry a token when `logprobs` was asked for; waits for the end."""
        return self._wait().logprobs

    @property
    def scores(self) -> dict[str, float]:
        """Each option's score by the method asked for, higher is better; empty after `gen`. Waits for the end."""
        return {score.option: score.score for score in self._wait().scores}

    @property
    def done(self) -> bool:
        """Whether a read would not wait. A value that came and is still to be judged by `validate` is judged now."""
        self._session.verdicts.work()
        return self._cell.outcome is not None

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._read_async().__await__()

    def __iter__(self) -> Iterator[str]:
        """Text as it comes; joined it is `text`. Each iteration starts at the beginning."""
        yield from iterate(self._session, self._cell)
        self._check(self._cell.wait())

    async def __aiter__(self) -> AsyncIterator[str]:
        """The same in an event loop."""
        async for piece in iterate_async(self._session, self._cell):
            yield piece
        self._check(self._cell.wait())

    def __repr__(self) -> str:
        outcome = self._cell.outcome
        state = "running" if outcome is None else repr(outcome.value) if isinstance(outcome, Done) else type(outcome).__name__
        return f"<Var of {self.record.place}: {state}>"

    # ---- what must not be done with it -----------------------------------------------------------------------------

    def __str__(self) -> str:
        self._misused("put into a string")

    def __format__(self, spec: str) -> str:
        self._misused("put into an f-string")

    def __bool__(self) -> bool:
        self._misused("tested for truth")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Var):
            return self is other
        self._misused(f"compared with a {type(other).__name__}")
        return None

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # checkers say what a Var has, and that is none of these

        def __getattr__(self, name: str) -> NoReturn:
            record = self.__dict__.get("record")
            if record is None or name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(
                f"the Var of {record.place} has no {name!r}: read its value first, as in v.value.{name} (or await v)"
            )

        def _operated(self, *others: object) -> NoReturn:
            self._misused("used as if it were its value")

        __lt__ = __le__ = __gt__ = __ge__ = _operated
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operated
        __len__ = __getitem__ = __contains__ = __int__ = __float__ = _operated

    def _misused(self, how: str) -> NoReturn:
        raise VarInTextError(
            f"the Var of {self.record.place} was {how}, but its value may not exist yet. In a prompt pass the Var itself, "
            "as in s += rs.user('Merge:', v), and the server fills it in; elsewhere read v.value (or await v)."
        )

    # ---- for this package ------------------------------------------------------------------------------------------

    def belongs_to(self, session: Session) -> bool:
        """Whether it was made in that program."""
        return self._session is session

    def reference(self) -> int | str:
        """How another op names the value: its number on the server, or its text when the server has dropped its branch."""
        if not self.record.branch.closed:
            return self.record.var
        return self._check(self._cell.wait()).value

    def peek(self) -> str | None:
        """The text if it is there."""
        outcome = self._cell.outcome
        return outcome.value if isinstance(outcome, Done) else None

    @property
    def place(self) -> str:
        """The op and line that made it."""
        return self.record.place

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call once when a read would not wait any more."""
        self._cell.when_settled(callback)

    def flush(self) -> None:
        """Send what leads to it."""
        self._session.flush()

    @property
    def verdicts(self) -> Verdicts:
        """Where its program's values are judged."""
        return self._session.verdicts

    def settle(self) -> None:
        """Wait for the end, whatever it is; raises nothing."""
        self._session.flush()
        wait(self._session.verdicts, self._cell)

    async def settle_async(self) -> None:
        """The same in an event loop."""
        self._session.flush()
        await wait_async(self._session.verdicts, self._cell)

    def _wait(self) -> Done:
        self.settle()
        return self._check(self._cell.wait())

    async def _read_async(self) -> T_co:
        self._session.flush()
        return self._value_of(self._check(await wait_async(self._session.verdicts, self._cell)))

    def _check(self, outcome: Done | RadixServeError) -> Done:
        if isinstance(outcome, Done):
            return outcome
        self._session.saw(outcome)
        # One error object, however many readers: each begins its own traceback.
        raise outcome.with_traceback(None)

    def _value_of(self, done: Done) -> T_co:
        if self._converted is None:
            try:
                self._converted = self._convert(done)
            except Exception as error:  # whatever the user's own validators raise is told with the op and its line
                self._converted = invalid_value(self.record, done, error)
        if isinstance(self._converted, InvalidValueError):
            raise self._converted.with_traceback(None)
        return self._converted
