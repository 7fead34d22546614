"""The tokenizer process's core and the runtime's core in one process, with one clock that moves a little with every step.

Nothing here depends on how fast the machine is or what else it does, so messages, bytes, forward passes and tokens are the same in
every run, and a difference is a change of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve_runtime import protocol as rt
from radixserve_runtime.config import RuntimeConfig
from radixserve_runtime.engine.build import build_core
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import TokenizerConfig
from radixserve_tokenizer.programs.core import Core
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.text.load import load_tokenizer
from radixserve_tokenizer.text.template import load_template

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CLIENT = b"client"
_STEP_S = 0.01
_MAX_TURNS = 100_000


class _NoCompiler:
    """No constraint is asked for here."""

    def submit(self, ticket: int, constraint: wire.Constraint) -> None:
        """Refuse."""
        raise NotImplementedError("constraints are compiled in a process of its own, whose timing is no count")

    def cancel(self, ticket: int) -> None:
        """Nothing was submitted."""

    def receive(self) -> list[Any]:
        """Nothing was submitted."""
        return []

    def tick(self, now: float) -> None:
        """Nothing was submitted."""


@dataclass(slots=True)
class Traffic:
    """One direction of one connection."""

    frames: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, messages: Sequence[Any], frame: bytes) -> None:
        """A frame."""
        self.frames += 1
        self.messages += len(messages)
        self.bytes += len(frame)


@dataclass(slots=True)
class Counted:
    """All four directions."""

    client_to_tokenizer: Traffic = field(default_factory=Traffic)
    tokenizer_to_client: Traffic = field(default_factory=Traffic)
    tokenizer_to_runtime: Traffic = field(default_factory=Traffic)
    runtime_to_tokenizer: Traffic = field(default_factory=Traffic)


class Stack:
    """A client's end of an engine without sockets. Raises `RuntimeError` when an op fails or nothing moves any more."""

    def __init__(self, model: Path, **settings: Any) -> None:
        self._now = 1.0
        options: dict[str, Any] = {"dtype": "float32", "backend": "reference", "kv_tokens": 8192, "num_threads": 1} | settings
        self.engine = build_core(RuntimeConfig(model=str(model), socket="ipc://unused", **options), self._clock)
        tokenizer = load_tokenizer(model)
        config = TokenizerConfig(model=str(model), model_name="counted", socket="ipc://unused", runtime_socket="ipc://unused")
        self._core = Core(config, TextModel(tokenizer, load_template(tokenizer)), _NoCompiler(), clock=self._clock)
        self.counted = Counted()
        self._ended: dict[int, wire.Done] = {}
        hello = self._core.link.hello_due(self._now)
        if hello is None:
            raise RuntimeError("the tokenizer process did not greet the runtime")
        self.engine.handle(hello)
        self._core.link.hello_sent(self._now)
        self.send([wire.Hello(version=wire.PROTOCOL_VERSION, client="count")])
        self.settle()
        self.counted = Counted()  # greetings carry random names

    def _clock(self) -> float:
        return self._now

    def send(self, messages: list[wire.FromClient]) -> None:
        """One frame of the client's."""
        frame = wire.encode(messages)
        self.counted.client_to_tokenizer.add(messages, frame)
        for message in wire.decode_from_client(frame):
            self._core.handle(_CLIENT, message)
        self._core.frame_ended(_CLIENT)

    def settle(self) -> dict[int, wire.Done]:
        """Go on until nothing moves; what has been done since the last call, by op times 1,000 plus program."""
        for _ in range(_MAX_TURNS):
            moved = self._turn()
            if not moved and not self.engine.has_work:
                done, self._ended = self._ended, {}
                return done
        raise RuntimeError("the engine did not come to rest")

    def _turn(self) -> bool:
        self._core.tick()
        outgoing = self._core.link.take_outgoing()
        if outgoing:
            frame = rt.encode(outgoing)
            self.counted.tokenizer_to_runtime.add(outgoing, frame)
            for message in rt.decode_to_runtime(frame):
                self.engine.handle(message)
        stepped = self.engine.step()
        self._now += _STEP_S * stepped
        events = self.engine.take_events()
        if events:
            frame = rt.encode(events)
            self.counted.runtime_to_tokenizer.add(events, frame)
            for event in rt.decode_from_runtime(frame):
                self._core.on_runtime(event)
        flushed = self._core.flush()
        for _, answers in flushed:
            self.counted.tokenizer_to_client.add(answers, wire.encode(answers))
            self._hear(answers)
        return bool(outgoing or stepped or events or flushed)

    def _hear(self, events: list[wire.Event]) -> None:
        for event in events:
            match event:
                case wire.Done():
                    self._ended[1000 * event.program + event.op] = event
                case wire.Failed() | wire.Refused() | wire.Goodbye():
                    raise RuntimeError(f"an op failed: {event}")
                case _:
                    pass
