"""The app in this process or under a real uvicorn, over a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from radixserve.http.app import create_app
from radixserve.http.config import HttpConfig
from radixserve.http.server import build_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import uvicorn

    from tests.http.fake_engine import FakeClient

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


@dataclass
class Live:
    """A real uvicorn on loopback, in a thread."""

    url: str
    client: FakeClient
    server: uvicorn.Server


@contextlib.contextmanager
def running(client: FakeClient, settings: HttpConfig) -> Iterator[Live]:
    server = build_server(create_app(client, settings=settings), settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        while client.welcome_error is None and httpx.get(f"{url}/v1/models").status_code == 503:
            time.sleep(0.01)
        yield Live(url, client, server)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextlib.contextmanager
def serving(
    client: FakeClient | Callable[[], FakeClient], settings: HttpConfig | None = None
) -> Iterator[Callable[..., httpx.Response]]:
    """`httpx`'s ASGI transport over the app, with its lifespan, driven by a loop in a thread (a test is plain code)."""
    app = create_app(client, settings=settings or HttpConfig(served_names=("tiny",), query_timeout_s=0.3))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    stack = contextlib.AsyncExitStack()

    async def start() -> httpx.AsyncClient:
        await stack.enter_async_context(app.router.lifespan_context(app))
        if getattr(client, "welcome_error", None) is None:
            await app.state.radixserve.connected()
        return await stack.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://test")
        )

    http = run(start())

    def call(
        path: str, body: Any = None, *, raw: bytes | None = None, method: str | None = None, **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if raw is not None:
            named.setdefault("content-type", "application/json")
            return run(http.request(method or "POST", path, content=raw, headers=named))
        if body is None:
            return run(http.request(method or "GET", path, headers=named))
        return run(http.request(method or "POST", path, json=body, headers=named))

    try:
        yield call
    finally:
        run(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def events(response: httpx.Response) -> list[Any]:
    """The events of a stream, parsed; "[DONE]" stays text. A name of an event is its type."""
    found: list[Any] = []
    for block in response.text.split("\n\n"):
        if block:
            *name, line = block.split("\n")
            assert line.startswith("data: ")
            found.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
            assert not name or name == [f"event: {found[-1]['type']}"]
    return found
