"""A terminal chat against a server: one conversation, streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import orjson
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator


class ChatError(RuntimeError):
    """The server can't be reached or refused; the text says which and why."""


@dataclass
class ChatSession:
    """One conversation: its settings, its messages so far, and what the last answer cost."""

    url: str
    model: str = ""
    system: str = ""
    max_tokens: int = 512
    temperature: float = 0.7
    api_key: str = ""
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        """Open the connection and find the model's name."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(300.0, connect=5.0))
        if self.system:
            self.messages.append({"role": "system", "content": self.system})
        if not self.model:
            try:
                answer = self._http.get("/v1/models")
                answer.raise_for_status()
                self.model = answer.json()["data"][0]["id"]
            except (httpx.HTTPError, ValueError, LookupError) as error:
                raise ChatError(f"no server answers at {self.url} ({error}); start one with `radixserve serve`") from error

    def ask(self, text: str) -> Iterator[str]:
        """Send one turn and yield the answer as it comes. A turn that fails is taken back out of the conversation."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            for piece in self._stream():
                pieces.append(piece)
                yield piece
        except (httpx.HTTPError, ValueError) as error:
            del self.messages[-1]
            raise ChatError(str(error) or type(error).__name__) from error
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _stream(self) -> Iterator[str]:
        body = {
            "model": self.model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise ValueError(_message(answer.content))
            for line in answer.iter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                event = orjson.loads(line[5:])
                if "error" in event:
                    raise ValueError(str(event["error"].get("message")))
                self.usage = event.get("usage") or self.usage
                for choice in event.get("choices") or ():
                    yield choice["delta"].get("content") or ""


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body.decode("utf-8", "replace")[:500]


def converse(session: ChatSession, console: Console | None = None) -> None:
    """Read turns until end of input or /quit; /new starts over."""
    out = console or Console()
    out.print(f"[bold]{session.model}[/bold] at {session.url}. /new starts over, /quit ends.", highlight=False)
    while True:
        try:
            text = out.input("[bold cyan]you[/bold cyan] ").strip()
        except (EOFError, KeyboardInterrupt):
            out.print()
            return
        if text == "/quit":
            return
        if text == "/new":
            session.messages = [m for m in session.messages if m["role"] == "system"]
            continue
        if text:
            _answer(session, text, out)


def _answer(session: ChatSession, text: str, out: Console) -> None:
    try:
        for piece in session.ask(text):
            out.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
    except ChatError as error:
        out.print(f"[red]{error}[/red]")
        return
    except KeyboardInterrupt:
        out.print(" [dim](stopped)[/dim]")
        return
    cached = (session.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    out.print(f"\n[dim]{session.usage.get('prompt_tokens', 0)} prompt tokens, {cached} from the cache[/dim]", highlight=False)
