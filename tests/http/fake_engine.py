"""A stand-in for the client at the I/O seam: it records what a program sends and answers with scripted events, on a thread of its own."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from radixserve_lang.errors import QueryFailedError
from radixserve_tokenizer.protocol import (
    Admitted,
    Append,
    CallDelta,
    Credit,
    Delta,
    Done,
    Event,
    Failed,
    Fork,
    FromClient,
    Gen,
    ModelCard,
    RateLimits,
    Refused,
    Text,
    TokenIds,
    TokenLogprob,
    ToolCall,
    Tools,
    ToolSpec,
    TopLogprob,
    Usage,
    Welcome,
)

CARD = ModelCard(
    name="tiny",
    architecture="LlamaForCausalLM",
    max_context=512,
    vocab_size=1000,
    dtype="float32",
    fingerprint="0123456789abcdef",
    eos_token_ids=(2,),
    has_chat_template=True,
)


USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=3, queued_s=0.01, prefill_s=0.02, decode_s=0.03)


@dataclass(frozen=True)
class Script:
    """What one generation writes."""

    tokens: tuple[str, ...] = ("Hello", " world", "!")
    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    usage: Usage = USAGE
    prompt_tokens: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    """Before the text, a delta each."""
    calls: tuple[ToolCall, ...] = ()
    """After the text, if the generation may call: the arguments in pieces of three characters."""
    coalesced: bool = False
    """No deltas came through (no credits): `Done` alone has all of it."""


Handler = Callable[["FakeChannel", list[FromClient]], None]


def entry(token: str, token_id: int, alternatives: int, *, first: bool = False) -> TokenLogprob:
    """A token's log-probability with made-up alternatives."""
    top = tuple(
        TopLogprob(token=f"alt{i}", token_id=900 + i, logprob=-1.0 - i, raw=f"alt{i}".encode()) for i in range(alternatives)
    )
    return TokenLogprob(
        token=token, token_id=token_id, logprob=None if first else -0.5, raw=token.encode(), top=() if first else top
    )


def play(channel: FakeChannel, gen: Gen, script: Script) -> None:
    """Answer one Gen: its deltas if it streams, then Done."""
    wanted = gen.sampling.logprobs
    logprobs = tuple(entry(token, i, wanted) for i, token in enumerate(script.tokens)) if wanted >= 0 else ()
    may_call = gen.tool_use is not None
    first: Usage | None = replace(script.usage, output_tokens=1)

    def say(delta: Delta) -> None:
        nonlocal first
        channel.say(replace(delta, usage=first))
        first = None

    if gen.stream and not script.coalesced:
        for piece in script.reasoning:
            say(Delta(program=channel.program, op=gen.op, var=gen.var, text="", reasoning=piece))
        for i, token in enumerate(script.tokens):
            delta = Delta(
                program=channel.program, op=gen.op, var=gen.var, text=token, token_ids=(i,), logprobs=logprobs[i : i + 1]
            )
            say(delta)
        for delta in call_deltas(script.calls) if may_call else ():
            say(Delta(program=channel.program, op=gen.op, var=gen.var, text="", calls=(delta,)))
    prompt: tuple[TokenLogprob, ...] = ()
    if gen.sampling.prompt_logprobs >= 0:
        prompt = tuple(entry(token, i, wanted, first=i == 0) for i, token in enumerate(script.prompt_tokens))
    channel.say(
        Done(
            program=channel.program,
            op=gen.op,
            var=gen.var,
            value="".join(script.tokens),
            token_ids=tuple(range(len(script.tokens))),
            finish_reason="tool_calls" if script.calls and may_call else script.finish_reason,  # type: ignore[arg-type]
            stop_reason=script.stop_reason,
            usage=script.usage,
            logprobs=logprobs,
            prompt_logprobs=prompt,
            prompt_token_ids=tuple(range(len(prompt))),
            reasoning="".join(script.reasoning),
            calls=script.calls if may_call else (),
        )
    )


def call_deltas(calls: tuple[ToolCall, ...]) -> list[CallDelta]:
    """The calls as a stream has them."""
    found: list[CallDelta] = []
    for index, call in enumerate(calls):
        found.append(CallDelta(index=index, id=call.id, name=call.name))
        text = call.arguments
        found += [CallDelta(index=index, arguments=text[i : i + 3]) for i in range(0, len(text), 3)]
    return found


def scripted(*scripts: Script, limits: RateLimits | None = None) -> Handler:
    """Admit the program; its k-th generation plays the k-th script, the last one again and again."""

    def handler(channel: FakeChannel, messages: list[FromClient]) -> None:
        gens = [message for message in messages if isinstance(message, Gen)]
        if gens:
            channel.say(Admitted(program=channel.program, limits=limits))
        for i, gen in enumerate(gens):
            play(channel, gen, scripts[min(i, len(scripts) - 1)])

    return handler


def silent(channel: FakeChannel, messages: list[FromClient]) -> None:
    """Admit, and never answer."""
    if any(isinstance(message, Gen) for message in messages):
        channel.say(Admitted(program=channel.program))


def refusing(status: int, code: str, message: str, retry_after_s: float = 0.0, limits: RateLimits | None = None) -> Handler:
    """Refuse every program."""

    def handler(channel: FakeChannel, messages: list[FromClient]) -> None:
        if any(isinstance(one, Gen) for one in messages):
            channel.say(
                Refused(
                    program=channel.program,
                    status=status,
                    code=code,
                    message=message,
                    retry_after_s=retry_after_s,
                    limits=limits,
                )
            )

    return handler


def failing(code: str, message: str, *, status: int = 500, param: str = "", after: Script | None = None) -> Handler:
    """Admit every program and fail its generations, after the deltas of `after`."""

    def handler(channel: FakeChannel, messages: list[FromClient]) -> None:
        for gen in [one for one in messages if isinstance(one, Gen)]:
            channel.say(Admitted(program=channel.program))
            for i, token in enumerate(after.tokens if after else ()):
                usage = USAGE if i == 0 else None
                channel.say(Delta(program=channel.program, op=gen.op, var=gen.var, text=token, token_ids=(i,), usage=usage))
            channel.say(
                Failed(program=channel.program, op=gen.op, var=gen.var, code=code, message=message, status=status, param=param)
            )

    return handler


class FakeChannel:
    """One program, as `radixserve_lang.Channel`."""

    def __init__(self, client: FakeClient, program: int, on_event: Callable[[Event], None], opening: dict[str, Any]) -> None:
        self.program = program
        self.opening = opening
        self.frames: list[list[FromClient]] = []
        self.granted = 0
        self.closed = threading.Event()
        self._buffer: list[FromClient] = []
        self._client = client
        self._on_event = on_event
        self._ops = itertools.count()
        self._vars = itertools.count()
        self._next_branch = 1

    def next_op(self) -> int:
        return next(self._ops)

    def next_var(self) -> int:
        return next(self._vars)

    def next_branches(self, count: int) -> int:
        first = self._next_branch
        self._next_branch += count
        return first

    def send(self, *messages: FromClient, flush: bool = False) -> None:
        self._buffer += messages
        if flush:
            frame, self._buffer = self._buffer, []
            self.frames.append(frame)
            self._client.post(self, frame)

    def grant(self, amount: int) -> None:
        self.granted += amount
        self.send(Credit(program=self.program, amount=amount), flush=True)

    def close(self) -> None:
        self.closed.set()

    def say(self, event: Event) -> None:
        """An event of this program; nothing is heard of a closed one."""
        if not self.closed.is_set():
            self._on_event(event)

    @property
    def messages(self) -> list[FromClient]:
        return [message for frame in self.frames for message in frame if not isinstance(message, Credit)]

    @property
    def gens(self) -> list[Gen]:
        return [message for message in self.messages if isinstance(message, Gen)]

    @property
    def forks(self) -> list[Fork]:
        return [message for message in self.messages if isinstance(message, Fork)]

    @property
    def appends(self) -> list[Append]:
        return [message for message in self.messages if isinstance(message, Append)]

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is told of."""
        return next((message.tools for message in self.messages if isinstance(message, Tools)), ())

    @property
    def prompt(self) -> list[tuple[str, Any]]:
        """(role, text or ids) of every append."""
        found: list[tuple[str, Any]] = []
        for append in self.appends:
            part = append.parts[0]
            found.append((append.role, part.ids if isinstance(part, TokenIds) else part.text if isinstance(part, Text) else None))
        return found


@dataclass
class FakeClient:
    """The client, as `radixserve_lang.Client`."""

    handler: Handler = field(default_factory=lambda: scripted(Script()))
    card: ModelCard = CARD
    answers: dict[str, Any] = field(
        default_factory=lambda: {"usage": {"tenants": {"": {}}}, "tenant": lambda body: {"tenant": body["api_key"]}}
    )
    """What a query answers; an exception (also of a function of the body) is raised, a missing kind never answers. Each key is a tenant's of its own."""
    welcome_error: Exception | None = None

    def __post_init__(self) -> None:
        self.channels: list[FakeChannel] = []
        self.queries: list[tuple[str, dict[str, Any]]] = []
        self._inbox: queue.SimpleQueue[tuple[FakeChannel, list[FromClient]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def welcome(self) -> Welcome:
        if self.welcome_error is not None:
            raise self.welcome_error
        return Welcome(version=1, epoch="1", model=self.card, heartbeat_s=1.0, client_timeout_s=10.0)

    def open(self, on_event: Callable[[Event], None], **opening: Any) -> FakeChannel:
        channel = FakeChannel(self, len(self.channels), on_event, opening)
        self.channels.append(channel)
        return channel

    def query(self, kind: str, body: dict[str, Any] | None = None) -> Future[dict[str, Any]]:
        self.queries.append((kind, body or {}))
        future: Future[dict[str, Any]] = Future()
        answer = self.answers.get(kind)
        try:
            answer = answer(body) if callable(answer) else answer
        except QueryFailedError as error:
            answer = error
        if isinstance(answer, QueryFailedError):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(5)

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def post(self, channel: FakeChannel, frame: list[FromClient]) -> None:
        self._inbox.put((channel, frame))

    @property
    def last(self) -> FakeChannel:
        return self.channels[-1]

    def _run(self) -> None:
        while (item := self._inbox.get()) is not None:
            self.handler(*item)
