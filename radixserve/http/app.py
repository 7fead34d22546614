"""The ASGI app. Nothing in it knows the engine but through the client that it is given."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from fastapi import FastAPI

from radixserve import __version__
from radixserve.http import accounts, chat, completions, health, models_route, tokenize_route
from radixserve.http.access_log import AccessLog
from radixserve.http.config import HttpConfig
from radixserve.http.errors import install_handlers
from radixserve.http.header_limit import HeaderLimit
from radixserve.http.messages_api import route as messages_route
from radixserve.http.openapi import install_openapi
from radixserve.http.responses_api import route as responses_route
from radixserve.http.state import ServerState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from radixserve.http.bridge import ClientLike

_DESCRIPTION = "Serves agent programs from one language model, here through OpenAI's API. Unknown fields are ignored; fields that are known and can't be honoured are a 400."


def create_app(client: ClientLike | Callable[[], ClientLike], *, settings: HttpConfig | None = None) -> FastAPI:
    """The HTTP server over `client`, a `radixserve_lang` client or a function that makes one (which the app then closes).

    The client is connected in the background once the app starts; until the engine has greeted it, requests are answered
    with 503 and /health says "loading". Shutting down is the ASGI server's: it stops accepting, lets running requests go on
    for its grace time, and cancels the rest, which closes their programs.
    """
    state = ServerState(client, settings or HttpConfig())

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        state.start()
        try:
            yield
        finally:
            await state.stop()

    app = FastAPI(title="RadixServe", version=__version__, description=_DESCRIPTION, lifespan=lifespan, redoc_url=None)
    app.state.radixserve = state
    for module in (chat, completions, responses_route, messages_route, tokenize_route, models_route, accounts, health):
        app.include_router(module.router)
    install_handlers(app)
    install_openapi(app)
    app.add_middleware(HeaderLimit, max_bytes=state.config.max_header_bytes)
    app.add_middleware(AccessLog, metrics=state.metrics)
    return app
