"""A transport without a socket: a thread hands the frames of a client to a stand-in for a server, and its events back."""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from radixserve_lang.errors import ClientClosedError
from radixserve_lang.frames import join_frame
from radixserve_lang.peers import Peers
from radixserve_tokenizer.protocol import PROTOCOL_VERSION, Goodbye, ModelCard, Query, Reply, Welcome, decode_from_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve_lang.channel import Channel
    from radixserve_lang.peers import Peer
    from radixserve_tokenizer.protocol import Event, FromClient

_log = logging.getLogger(__name__)

NO_MODEL = ModelCard(
    name="scripted",
    architecture="none",
    max_context=1 << 20,
    vocab_size=0,
    dtype="none",
    fingerprint="",
    eos_token_ids=(),
    has_chat_template=True,
)


class StandIn(Protocol):
    """Answers frames."""

    def take(self, messages: Iterable[FromClient]) -> list[Event]:
        """Messages of one frame; returns what they led to."""
        ...


class InProcess:
    """A `Transport`. The thread starts with the first message; `close` ends it."""

    def __init__(self, server: StandIn, model: ModelCard, *, url: str, flush_after_s: float = 0.002) -> None:
        self._server = server
        self._model = model
        self.url = url
        self.flush_after_s = flush_after_s
        self.peers = Peers()
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._inbox: queue.SimpleQueue[tuple[Peer, list[bytes]] | None] = queue.SimpleQueue()
        self._timers: deque[tuple[float, Channel]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"radixserve-{url}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def welcome(self) -> Welcome:
        """At once."""
        self._check_usable()
        return Welcome(version=PROTOCOL_VERSION, epoch=self.url, model=self._model, heartbeat_s=60.0, client_timeout_s=600.0)

    def register(self, on_event: Callable[[Event], None], *, is_program: bool) -> Peer:
        """A new program or query; raises `ClientClosedError`."""
        self._check_usable()
        return self.peers.add(next(self._numbers), on_event, is_program=is_program)

    def post(self, peer: Peer, messages: list[bytes]) -> None:
        """Hand messages over."""
        self._inbox.put((peer, messages))

    def flush_at(self, due: float, channel: Channel) -> None:
        """Have `channel.flush_due` called at `due`."""
        self._timers.append((due, channel))
        self._inbox.put(None)

    def close(self) -> None:
        """End the thread and what is open."""
        if self._stopping or os.getpid() != self._pid:
            return
        self._stopping = True
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ClientClosedError("this engine was made before a fork; make a new one in the child process")
        if self._stopping:
            raise ClientClosedError("this engine is closed")

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping or not self._inbox.empty():
                self._turn()
        except Exception:
            _log.exception("the thread of %s failed; this is a bug", self.url)
        finally:
            self._stopping = True
            self.peers.lose(Goodbye(epoch="", message="the engine was closed"), which=lambda peer: True)

    def _turn(self) -> None:
        wait = None if not self._timers else max(0.0, self._timers[0][0] - time.monotonic())
        try:
            work = self._inbox.get(timeout=wait)
        except queue.Empty:
            work = None
        if work is not None and not work[0].gone:
            self._take(decode_from_client(join_frame(work[1])))
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._timers.popleft()[1].flush_due(now)

    def _take(self, messages: list[FromClient]) -> None:
        for message in messages:
            if isinstance(message, Query) and (peer := self.peers.remove(message.id)) is not None:
                peer.tell(self._reply(message))
        for event in self._server.take(messages):
            self.peers.tell(getattr(event, "program", -1), event)

    def _reply(self, query: Query) -> Reply:
        if query.kind == "health":
            return Reply(id=query.id, body={"status": "ok", "model": self._model.name})
        return Reply(id=query.id, error=f"{self.url} has no model, so it can't answer {query.kind!r}", status=501)
