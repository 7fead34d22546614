"""The app under uvicorn, with the settings that it needs: no second access log, a bounded drain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import uvicorn

from radixserve.http.connections import bounded_protocol

if TYPE_CHECKING:
    from fastapi import FastAPI

    from radixserve.http.config import HttpConfig


def build_server(app: FastAPI, settings: HttpConfig) -> uvicorn.Server:
    """A server that is not running yet.

    `should_exit` makes it stop accepting and drain for `drain_timeout_s`, then cancel what still runs; `force_exit` (a second
    Ctrl-C) stops at once.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        # Above the limit that is answered properly: what is larger still is cut off while it arrives.
        http=bounded_protocol(settings),
        ws="none",
        h11_max_incomplete_event_size=4 * settings.max_header_bytes,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s),
    )
    return uvicorn.Server(config)
