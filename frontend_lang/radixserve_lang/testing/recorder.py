"""`record`: runs go to a real engine, and what they asked and got is written to a file."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixserve_lang.client import Client
from radixserve_lang.frames import join_frame
from radixserve_lang.testing.desk import Desk
from radixserve_lang.testing.recording import header, line_of, op_of
from radixserve_tokenizer.protocol import Done, Failed, decode_from_client

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self, TextIO

    from radixserve_lang.channel import Channel
    from radixserve_lang.connect import EngineLike
    from radixserve_lang.peers import Peer, Peers
    from radixserve_lang.testing.branches import Program
    from radixserve_lang.testing.desk import Outcome
    from radixserve_lang.testing.questions import Question
    from radixserve_tokenizer.protocol import Event, FromClient, Welcome


class record:  # noqa: N801  (used like a function)
    """An engine that writes down what the programs run with it ask and get; `Replay` plays it back.

    ```python
    with rs.testing.record("chat.jsonl", engine) as recorded:
        chat.run(["Hello"], engine=recorded)
    ```

    Each op is written when its outcome comes. The engine itself stays open.
    """

    def __init__(self, path: str | os.PathLike[str], engine: EngineLike) -> None:
        inner = engine.client
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  (closed by `close`)
        self._client = Client.over(_Tap(inner, self._file), api_key=inner.api_key)

    @property
    def client(self) -> Client:
        """The connection that programs run over."""
        return self._client

    def close(self) -> None:
        """End the file. A second call does nothing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(slots=True)
class _Watched:
    """A program that is being recorded."""

    number: int
    asked: dict[int, Question] = field(default_factory=dict[int, "Question"])
    early: dict[int, Done | Failed] = field(default_factory=dict[int, "Done | Failed"])
    num_outcomes: int = 0


class _Tap:
    """A transport over another's: it passes everything on and looks at it."""

    def __init__(self, inner: Client, file: TextIO) -> None:
        self._owner = inner  # stays open as long as this is
        self._inner = inner.transport
        self._file = file
        self._lock = threading.Lock()
        self._programs: dict[int, _Watched] = {}
        self._desk = Desk(self._ask, on_end=self._program_ends)
        self._mine: set[int] = set()
        self._has_header = False
        self._closed = False

    @property
    def url(self) -> str:
        """The engine's."""
        return self._inner.url

    @property
    def peers(self) -> Peers:
        """The engine's."""
        return self._inner.peers

    @property
    def flush_after_s(self) -> float:
        """The engine's."""
        return self._inner.flush_after_s

    def start(self) -> None:
        """It runs already."""

    def welcome(self) -> Welcome:
        """The engine's."""
        return self._inner.welcome()

    def flush_at(self, due: float, channel: Channel) -> None:
        """By the engine's thread."""
        self._inner.flush_at(due, channel)

    def register(self, on_event: Callable[[Event], None], *, is_program: bool) -> Peer:
        """With an ear of our own."""

        def hear(event: Event) -> None:
            self._hear(event)
            on_event(event)

        return self._inner.register(hear if is_program else on_event, is_program=is_program)

    def post(self, peer: Peer, messages: list[bytes]) -> None:
        """Look, and pass on."""
        decoded = decode_from_client(join_frame(messages))
        with self._lock:
            if not self._closed:
                self._take(peer, decoded)
        self._inner.post(peer, messages)

    def close(self) -> None:
        """What is still running is written as such."""
        with self._lock:
            if self._closed:
                return
            for number in list(self._programs):
                self._write_running(self._programs.pop(number))
            self._closed = True
            self._file.close()

    # ---- under the lock ------------------------------------------------------------------------------------------

    def _take(self, peer: Peer, messages: list[FromClient]) -> None:
        if peer.is_program and peer.number not in self._mine:
            self._mine.add(peer.number)
            self._programs[peer.number] = _Watched(len(self._mine) - 1)
            if not self._has_header:
                self._has_header = True
                self._write(header(self._inner.welcome().model))
            opening = next((message for message in messages if hasattr(message, "cache_salt")), None)
            self._write({"program": len(self._mine) - 1, "seed": getattr(opening, "seed", None)})
        self._desk.take(messages)

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Done | Failed) or event.op < 0:
            return
        with self._lock:
            program = self._programs.get(event.program)
            if program is None or self._closed:
                return
            asked = program.asked.pop(event.op, None)
            if asked is None:
                program.early[event.op] = event
            else:
                self._write_outcome(program, asked, event)
            self._desk.settle(event.program, event.op, event)

    def _ask(self, asked: Question) -> Outcome:
        program = self._programs[asked.program]
        outcome = program.early.pop(asked.op.op, None)
        if outcome is None:
            program.asked[asked.op.op] = asked
        else:
            self._write_outcome(program, asked, outcome)
        return outcome

    def _program_ends(self, program: Program) -> None:
        watched = self._programs.pop(program.opening.program, None)
        if watched is not None:
            self._write_running(watched)

    def _write_outcome(self, program: _Watched, asked: Question, outcome: Done | Failed) -> None:
        if isinstance(outcome, Failed) and outcome.code == "cancelled":
            outcome_or_none, order = None, -1  # by the program itself: played back it does the same
        else:
            outcome_or_none, order = outcome, program.num_outcomes
            program.num_outcomes += 1
        self._write(line_of(program.number, (asked.path, asked.index), op_of(asked, outcome_or_none, order)))

    def _write_running(self, program: _Watched) -> None:
        for asked in program.asked.values():
            self._write(line_of(program.number, (asked.path, asked.index), op_of(asked)))

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()
