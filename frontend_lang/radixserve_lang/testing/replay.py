"""`Replay`: an engine that plays a recording back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_lang.client import Client
from radixserve_lang.testing.desk import Desk
from radixserve_lang.testing.errors import DivergedError
from radixserve_lang.testing.inprocess import InProcess
from radixserve_lang.testing.recording import op_of, read
from radixserve_lang.testing.runs import Playing, Runs, difference
from radixserve_tokenizer.protocol import Cancel, Drop, Failed

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from radixserve_lang.testing.branches import Program
    from radixserve_lang.testing.desk import Outcome
    from radixserve_lang.testing.questions import Question
    from radixserve_tokenizer.protocol import Event, FromClient


class Replay:
    """An engine that answers as the one did that `record` listened to. No process, no socket, no model.

    Programs may run in any order and side by side: each is matched with a recorded run by what it asks first (and by its
    seed). A program that then asks something else is told so at the read (`OpError` with code "diverged": the op, its line
    and the difference), and closing raises `DivergedError`, also for one that ended before it had asked for all that its run
    has. Outcomes come in the order in which they came. A recorded run that nobody played again is no error.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `RecordingError` for a file that is no recording of this version."""
        recording = read(path)
        self._path = str(path)
        self._desk = Desk(self._ask, on_end=self._program_ends)
        self._runs = Runs(recording.programs)
        self._playing: dict[int, Playing] = {}
        self._problems: list[str] = []
        self._client = Client.over(InProcess(self, recording.model, url=f"replay of {path}"))

    @property
    def client(self) -> Client:
        """The connection that programs run over."""
        return self._client

    def close(self) -> None:
        """Raise `DivergedError` if a program did. A second call does nothing."""
        self._client.close()
        problems, self._problems = self._problems, []
        if problems:
            raise DivergedError("\n".join(problems))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._client.close()  # the test has failed already, and says why

    # ---- on the engine's thread ----------------------------------------------------------------------------------

    def take(self, messages: Iterable[FromClient]) -> list[Event]:
        """Messages of one frame; returns what they led to."""
        messages = list(messages)
        for message in messages:
            if isinstance(message, Cancel | Drop) and message.program in self._playing:
                playing = self._playing[message.program]
                playing.skip(self._desk.paths(message.program, message.branches))
        events = self._desk.take(messages)
        for number in {getattr(message, "program", -1) for message in messages} & self._playing.keys():
            events += self._release(number)
        return events

    def _ask(self, asked: Question) -> Outcome:
        playing = self._playing.get(asked.program)
        if playing is None:
            playing = self._playing[asked.program] = Playing(asked.seed)
        key = (asked.path, asked.index)
        found = op_of(asked)
        expected = self._runs.expected(playing, key, found, asked.op.op)
        if expected is None or not expected.asks_like(found):
            why = difference(expected, found) if playing.number >= 0 else "all of its runs have been played"
            message = f"{asked.place} is not what {self._path} has: {why}"
            self._problems.append(message)
            playing.has_diverged = True
            return Failed(program=0, op=0, code="diverged", message=message, status=500)
        return None

    def _release(self, number: int) -> list[Event]:
        """Outcomes whose turn it is."""
        playing = self._playing[number]
        events: list[Event] = []
        while (due := playing.next_outcome()) is not None:
            events += self._desk.settle(number, *due)
        return events

    def _program_ends(self, program: Program) -> None:
        playing = self._playing.pop(program.opening.program, None)
        if playing is not None:
            playing.is_over = True
            left = playing.left_over()
            if left:
                text = f"a program ended without the {left[0].kind} at {left[0].where} that its run in {self._path} has"
                self._problems.append(text)
