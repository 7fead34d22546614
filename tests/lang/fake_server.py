"""A tokenizer process in miniature: it speaks the real protocol over a real socket, and a script decides what is said."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

from radixserve_tokenizer.protocol import (
    PROTOCOL_VERSION,
    Admitted,
    Append,
    Attach,
    Cancel,
    Close,
    Credit,
    Delta,
    Done,
    Drop,
    Event,
    Failed,
    Fork,
    FromClient,
    Gen,
    Goodbye,
    Hello,
    Lease,
    ModelCard,
    Open,
    OptionScore,
    Ping,
    Pong,
    Query,
    Release,
    Reply,
    Rollback,
    Score,
    Select,
    ToolCall,
    Tools,
    Usage,
    Welcome,
    decode_from_client,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve_lang.client import Client

CARD = ModelCard(
    name="fake",
    architecture="none",
    max_context=4096,
    vocab_size=100,
    dtype="float32",
    fingerprint="f",
    eos_token_ids=(0,),
    has_chat_template=True,
)

#: What a script says to a gen: the text, its pieces, whole events, or None to leave it running.
Answer = str | list[str] | Event | None


def called(gen: Gen, *calls: tuple[str, str], text: str = "") -> Done:
    """The end of a gen with calls, each a name and JSON text."""
    made = tuple(ToolCall(id=f"call_{gen.var}_{i}", name=name, arguments=arguments) for i, (name, arguments) in enumerate(calls))
    return Done(program=gen.program, op=gen.op, var=gen.var, value=text, finish_reason="tool_calls", calls=made)


def split(text: str) -> list[str]:
    """Pieces as a stream would have them."""
    return [text[i : i + 3] for i in range(0, len(text), 3)] or [""]


@dataclass
class Engine:
    """As `connect` and the real Engine offer it."""

    client: Client


class FakeServer:
    """One thread with a ROUTER. `answer` is called for each Gen on that thread; held gens are ended by `finish`."""

    def __init__(
        self,
        url: str,
        answer: Callable[[Gen], Answer] = lambda gen: "ok",
        *,
        heartbeat_s: float = 1.0,
        client_timeout_s: float = 10.0,
        epoch: str = "",
        on_attach: Callable[[Attach], list[Event]] = lambda message: [],
        curve_secret: bytes = b"",
    ) -> None:
        self.url = url
        self.answer = answer
        self.epoch = epoch or uuid.uuid4().hex
        self.on_attach = on_attach
        self.curve_secret = curve_secret
        self.heartbeat_s = heartbeat_s
        self.client_timeout_s = client_timeout_s
        self.frames: list[list[FromClient]] = []
        self.num_deltas = 0
        self.silent = False
        self.paused = False
        self.refuse_hello = ""
        self.on_open: Callable[[Open], Event] = lambda message: Admitted(program=message.program)
        self.on_query: Callable[[Query], Event] = lambda message: Reply(
            id=message.id, body={"kind": message.kind, **message.body}
        )
        self._owner: dict[int, bytes] = {}
        self._held: dict[tuple[int, int], Gen] = {}
        self._credits: defaultdict[int, int] = defaultdict(int)
        self._pending: defaultdict[tuple[int, int, int], str] = defaultdict(str)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(5)

    # ---- for tests ----

    @property
    def messages(self) -> list[FromClient]:
        """All but pings, in order."""
        return [message for frame in list(self.frames) for message in frame if not isinstance(message, Ping)]

    def of(self, kind: type[Any]) -> list[Any]:
        """Messages of one kind."""
        return [message for message in self.messages if isinstance(message, kind)]

    def op_frames(self) -> list[list[FromClient]]:
        """Frames that hold an Open or ops."""
        return [frame for frame in list(self.frames) if not isinstance(frame[0], Hello | Ping | Credit)]

    def wait_for(self, kind: type[Any], count: int = 1, timeout_s: float = 5.0) -> list[Any]:
        """Until so many of that kind have come."""
        deadline = time.monotonic() + timeout_s
        while len(found := self.of(kind)) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} {kind.__name__}; got {self.messages}"
            time.sleep(0.002)
        return found

    def send(self, *events: Event) -> None:
        """From the test's thread; each event goes to the owner of its program, others to the last client."""
        self._work.put(lambda: [self._emit(event) for event in events] and None)

    def finish(self, var: int, text: str, program: int | None = None) -> None:
        """End a held gen."""

        def work() -> None:
            for key, gen in list(self._held.items()):
                if key[1] == var and program in (None, key[0]):
                    del self._held[key]
                    self._say(gen, text)

        self._work.put(work)

    def stop(self) -> None:
        """As a crash would: the socket closes, nothing is said."""
        self._stop.set()
        self._thread.join(5)

    # ---- the thread ----

    def _run(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.RCVHWM, 10)
        self._socket.set(zmq.LINGER, 0)
        if self.curve_secret:
            self._socket.set(zmq.CURVE_SERVER, 1)
            self._socket.set(zmq.CURVE_SECRETKEY, self.curve_secret)
        self._socket.bind(self.url)
        self._last = b""
        self._ready.set()
        while not self._stop.is_set():
            while not self._work.empty():
                self._work.get()()
            if self.paused:
                time.sleep(0.002)
            elif self._socket.poll(2):
                identity, frame = self._socket.recv_multipart()
                self._last = identity
                messages = decode_from_client(frame)
                self.frames.append(messages)
                if not self.silent:
                    for message in messages:
                        self._hear(identity, message)
        self._socket.close()
        context.term()

    def _emit(self, event: Event) -> None:
        identity = self._owner.get(getattr(event, "program", -1), self._last)
        self._socket.send_multipart([identity, encode([event])])

    def _hear(self, identity: bytes, message: FromClient) -> None:
        match message:
            case Hello():
                self._greet()
            case Ping():
                self._emit(Pong(epoch=self.epoch))
            case Open():
                self._owner[message.program] = identity
                self._credits[message.program] = message.credits
                self._emit(self.on_open(message))
            case Attach():
                self._owner[message.program] = identity
                self._credits[message.program] = message.credits
                for event in self.on_attach(message):
                    self._emit(event)
            case Query():
                self._emit(self.on_query(message))
            case Gen():
                self._gen(message)
            case Select() | Score():
                self._choose(message)
            case Cancel() | Drop():
                self._cancel(message.program, message.branches)
            case Credit():
                self._credits[message.program] += message.amount
                self._drain(message.program)
            case Append() | Tools() | Fork() | Rollback() | Lease() | Release() | Close():
                pass
            case _:
                raise AssertionError(message)

    def _greet(self) -> None:
        if self.refuse_hello:
            self._emit(Goodbye(epoch=self.epoch, message=self.refuse_hello))
            return
        self._emit(
            Welcome(
                version=PROTOCOL_VERSION,
                epoch=self.epoch,
                model=CARD,
                heartbeat_s=self.heartbeat_s,
                client_timeout_s=self.client_timeout_s,
            )
        )

    def _gen(self, gen: Gen) -> None:
        answer = self.answer(gen)
        if answer is None:
            self._held[gen.program, gen.var] = gen
        else:
            self._say(gen, answer)

    def _say(self, gen: Gen, answer: Answer) -> None:
        if not isinstance(answer, str | list):
            assert answer is not None
            self._emit(answer)
            return
        pieces = split(answer) if isinstance(answer, str) else answer
        key = (gen.program, gen.op, gen.var)
        if gen.stream:
            for piece in pieces:
                self._pending[key] += piece
                self._drain(gen.program)
            rest = self._pending.pop(key, "")
            if rest:
                self._delta(key, rest)
        usage = Usage(prompt_tokens=10, cached_tokens=7, output_tokens=len(pieces))
        self._emit(Done(program=gen.program, op=gen.op, var=gen.var, value="".join(pieces), usage=usage))

    def _drain(self, program: int) -> None:
        for key in [key for key in self._pending if key[0] == program]:
            if self._credits[program] > 0:
                self._credits[program] -= 1
                self._delta(key, self._pending.pop(key))

    def _delta(self, key: tuple[int, int, int], text: str) -> None:
        self.num_deltas += 1
        self._emit(Delta(program=key[0], op=key[1], var=key[2], text=text))

    def _choose(self, message: Select | Score) -> None:
        scores = tuple(
            OptionScore(option=option, score=-float(i), logprob_sum=-float(i), num_tokens=1)
            for i, option in enumerate(message.options)
        )
        self._emit(Done(program=message.program, op=message.op, var=message.var, value=message.options[0], scores=scores))

    def _cancel(self, program: int, branches: Iterable[int]) -> None:
        for key, gen in list(self._held.items()):
            if key[0] == program and gen.branch in branches:
                del self._held[key]
                self._emit(
                    Failed(
                        program=program, op=gen.op, var=gen.var, code="cancelled", message="the branch was cancelled", status=499
                    )
                )
