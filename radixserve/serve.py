"""`radixserve serve`: the engine's processes, then the HTTP server in this one, and a clean end of both."""

from __future__ import annotations

import logging
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from radixserve import __version__
from radixserve.bind import check_exposure
from radixserve.config import ConfigError
from radixserve.engine import Engine, EngineStartError
from radixserve.http.app import create_app
from radixserve.http.config import HttpConfig
from radixserve.http.server import build_server
from radixserve.keys import read_pair
from radixserve.logs import configure_logging
from radixserve.models import ModelError
from radixserve.open_files import allow_connections
from radixserve_tokenizer.turns import take_short_turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from radixserve.config import ServeConfig

logger = logging.getLogger(__name__)


def run(config: ServeConfig, console: Console | None = None) -> int:
    """Serve until told to stop; returns the exit status. The first Ctrl-C drains, a second one stops at once."""
    out = console or Console(stderr=True, highlight=False)
    configure_logging(config.log_level)
    started = time.monotonic()

    def say(text: str) -> None:
        out.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {escape(text)}", soft_wrap=True)

    def complain(text: str) -> int:
        out.print(f"[red]{escape(text)}[/red]", soft_wrap=True)
        return 1

    try:
        check_exposure(config)
        listener = _listen(config.host, config.port)
    except ConfigError as error:
        return complain(str(error))
    except OSError as error:
        return complain(
            f"can't listen on {config.host}:{config.port}: {error.strerror or error}; choose another --host or --port"
        )
    if config.allow_anonymous:
        logger.warning("anonymous use is allowed: whoever reaches %s:%d can use the engine", config.host, config.port)
    form = config.dtype if config.quantization == "none" else f"{config.quantization} ({config.dtype})"
    say(f"RadixServe {__version__}: {config.model}, {form}, KV pool for {config.kv_tokens:,} tokens")
    say("starting the runtime and the tokenizer process")
    # The HTTP server raises the signal again that ended it, so that this process ends as one that was interrupted: it
    # must come as an exception, or nothing here is closed.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with listener, Engine.from_config(config, say=say) as engine:
            _serve(engine, listener, say)
            engine.supervisor.check()
    except (EngineStartError, ModelError, ConfigError) as error:
        return complain(str(error))
    except KeyboardInterrupt:
        pass
    say("all processes ended")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its name: asyncio turns Nagle's algorithm off only for sockets that say TCP. With it the second event of an answer
    # waits some 40 ms on every connection that was used before. What is set here is inherited as well.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    # From here on the port is ours, and who connects while the model loads waits instead of being refused.
    listener.listen(2048)
    return listener


def http_settings(config: ServeConfig, names: tuple[str, ...]) -> HttpConfig:
    """The HTTP server's settings. More prompts than may wait could never be admitted together: that is a mistake, not an overload."""
    prompts = min(HttpConfig().max_prompts, config.max_queued)
    return HttpConfig(served_names=names, max_prompts=prompts, max_connections=allow_connections(config.max_connections))


def _server_key(config: ServeConfig) -> str:
    return read_pair(Path(config.server_keys).expanduser()).public


def _serve(engine: Engine, listener: socket.socket, say: Callable[[str], None]) -> None:
    card = engine.client.welcome.model
    names = engine.supervisor.names
    say(f"model ready: {card.architecture}, context {card.max_context:,} tokens")
    if engine.supervisor.num_tenants:
        say(f"{engine.supervisor.num_tenants:,} tenants: every request needs a key")
    settings = http_settings(engine.config, names)
    server = build_server(create_app(engine.client, settings=settings), settings)
    take_short_turns(except_for=engine.supervisor.thread_id)  # what that thread starts would inherit them
    host, port = listener.getsockname()[:2]
    say(
        f"serving {', '.join(names)} at http://{f'[{host}]' if ':' in host else host}:{port}/v1  (Ctrl-C drains, twice stops at once)"
    )
    say(f"programs connect to {engine.url}  (RADIXSERVE_URL)")
    if engine.config.listen:
        say(f"programs on other machines connect to {engine.config.listen}, server key {_server_key(engine.config)}")
    if engine.config.tenants:  # else the end of its terminal ends it
        signal.signal(signal.SIGHUP, lambda number, frame: engine.supervisor.reload_tenants())
    engine.supervisor.on_failed = lambda: setattr(server, "should_exit", True)
    server.run(sockets=[listener])
