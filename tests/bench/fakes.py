"""Servers that count words as tokens: one in this process, one that speaks OpenAI's API over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from radixserve.bench.ask import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.requests import Request

    from radixserve.bench.ask import Message, Output

#: Tokens that the "template" adds to each message.
AROUND = 3


def count_words(messages: Sequence[Message]) -> int:
    return sum(AROUND + len(content.split()) for _, content in messages)


@dataclass
class FakeTarget:
    """Answers with the word "yes" again and again; remembers what was asked."""

    address: str = "fake"
    model: str = "fake"
    max_context: int = 0
    num_keys: int = 1
    notes: list[str] = field(default_factory=list)
    pause_s: float = 0.0
    fails: Any = lambda messages: ""
    """(messages) -> an error, or "" """
    asked: list[tuple[list[Message], Output, int]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    running: int = 0
    most_running: int = 0

    def converse(self, key: int = 0) -> FakeConversation:
        self.opened += 1
        return FakeConversation(self, key, [])

    async def count(self, messages: Sequence[Message]) -> int:
        return count_words(messages)

    async def close(self) -> None:
        pass


@dataclass
class FakeConversation:
    target: FakeTarget
    key: int
    messages: list[Message]

    async def say(self, messages: Sequence[Message], output: Output, label: str = "") -> Outcome:
        target = self.target
        self.messages += messages
        target.asked.append((list(self.messages), output, self.key))
        outcome = Outcome(output, time.perf_counter(), key=self.key, label=label)
        target.running += 1
        target.most_running = max(target.most_running, target.running)
        await asyncio.sleep(target.pause_s)
        target.running -= 1
        outcome.error = target.fails(self.messages)
        outcome.ended_s = time.perf_counter()
        if outcome.error:
            return outcome
        outcome.first_s = outcome.ended_s
        text = " ".join(["yes"] * output.max_tokens)
        outcome.texts = [text] * output.n
        outcome.num_chunks = output.max_tokens * output.n
        outcome.prompt_tokens, outcome.cached_tokens = count_words(self.messages), 0
        outcome.reported_tokens = output.max_tokens * output.n
        if output.n == 1:
            self.messages.append(("assistant", text))
        return outcome

    async def fork(self, count: int) -> list[FakeConversation]:
        self.target.opened += count
        return [FakeConversation(self.target, self.key, list(self.messages)) for _ in range(count)]

    async def close(self) -> None:
        self.target.closed += 1


@dataclass
class FakeOpenAI:
    """What the server does, and what it was sent."""

    refused_fields: frozenset[str] = frozenset()
    """A request with one of these is a 400."""
    has_tokenize: bool = True
    says_usage: bool = True
    breaks_off: bool = False
    fails_on: str = ""
    """A request whose text has this is a 503."""
    key: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_tokenized: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ]
        )

    def _refuses(self, request: Request) -> bool:
        return bool(self.key) and request.headers.get("authorization") != f"Bearer {self.key}"

    async def models(self, request: Request) -> Response:
        if self._refuses(request):
            return JSONResponse({"error": {"message": "who are you?"}}, 401)
        return JSONResponse({"data": [{"id": "words", "max_model_len": 9000}]})

    async def tokenize(self, request: Request) -> Response:
        if not self.has_tokenize:
            return JSONResponse({"detail": "Not Found"}, 404)
        self.num_tokenized += 1
        return JSONResponse({"count": self._count(await request.json())})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        wrong = self.refused_fields & set(body)
        if wrong:
            return JSONResponse({"error": {"message": f"unknown field {sorted(wrong)[0]}"}}, 400)
        if self.fails_on and self.fails_on in json.dumps(body["messages"]):
            return JSONResponse({"error": {"message": "overloaded"}}, 503)
        if not body.get("stream"):
            return JSONResponse({"choices": [{"message": {"content": "yes"}}], "usage": self._usage(body)})
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for index in range(body.get("n", 1)):
            yield _event({"choices": [{"index": index, "delta": {"role": "assistant", "content": ""}}]})
        for _ in range(self._length(body)):
            for index in range(body.get("n", 1)):
                yield _event({"choices": [{"index": index, "delta": {"content": "yes "}, "finish_reason": None}]})
        if self.breaks_off:
            return
        yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if self.says_usage and body.get("stream_options"):
            yield _event({"choices": [], "usage": self._usage(body)})
        yield b"data: [DONE]\n\n"

    @staticmethod
    def _length(body: dict[str, Any]) -> int:
        return int(body.get("max_tokens") or body["max_completion_tokens"])

    def _usage(self, body: dict[str, Any]) -> dict[str, Any]:
        output = self._length(body) * body.get("n", 1)
        return {"prompt_tokens": self._count(body), "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": 2}}

    @staticmethod
    def _count(body: dict[str, Any]) -> int:
        return count_words([(one["role"], one["content"]) for one in body["messages"]])


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@contextlib.contextmanager
def openai_server(fake: FakeOpenAI) -> Iterator[str]:
    """The server's URL while it runs, in a thread."""
    server = uvicorn.Server(uvicorn.Config(fake.app(), port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert server.started
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
