"""All sockets that clients come in by, as one."""

from __future__ import annotations

import logging
import resource
from typing import TYPE_CHECKING

import zmq

from radixserve_tokenizer.peers import is_remote
from radixserve_tokenizer.remote import RemoteSocket
from radixserve_tokenizer.wire import ClientSocket
from radixserve_tokenizer.zap import ZapHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve_tokenizer.config import TokenizerConfig


logger = logging.getLogger(__name__)

_MAX_FILES = 65_536


class Doors:
    """The local socket and, where the settings name an address, the one for other machines with the handler of its handshakes."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], config: TokenizerConfig, is_allowed: Callable[[str], bool]
    ) -> None:
        """Raises `AddressError`."""
        self._local = ClientSocket(context, config.socket)
        self._zap: ZapHandler | None = None
        self._remote: RemoteSocket | None = None
        if config.listen:
            _allow_many_files()
            self._zap = ZapHandler(context, is_allowed)
            self._remote = RemoteSocket(context, config.listen, config.curve_secret_key)
        self._sockets = [self._local] if self._remote is None else [self._local, self._remote]

    def watch(self, poller: zmq.Poller) -> None:
        """Have all of them wake the loop."""
        for each in self._sockets:
            poller.register(each.socket, zmq.POLLIN)
        if self._zap is not None:
            poller.register(self._zap.socket, zmq.POLLIN)

    @property
    def blocked(self) -> frozenset[bytes]:
        """Clients whose frames wait."""
        return self._local.blocked if self._remote is None else self._local.blocked | self._remote.blocked

    def receive(self, is_full: Callable[[bool], bool]) -> Iterator[tuple[bytes, bytes]]:
        """Pairs of identity and frame that are there, by each door until `is_full` says so of it (the argument: whether it is the
        one for other machines). Handshakes are answered first."""
        if self._zap is not None:
            self._zap.answer()
        for each in self._sockets:
            frames = each.receive()
            while not is_full(each is self._remote):
                found = next(frames, None)
                if found is None:
                    break
                yield found

    def send(self, identity: bytes, frame: bytes) -> str:
        """Send or keep a frame. Returns why the client is lost, or nothing."""
        return self._of(identity).send(identity, frame)

    def retry(self) -> list[tuple[bytes, str]]:
        """Try what waits again; returns the clients that turned out to be lost, and why."""
        return [lost for each in self._sockets for lost in each.retry()]

    def forget(self, identity: bytes) -> None:
        """Drop what waits for a client."""
        self._of(identity).forget(identity)

    def close(self) -> None:
        """Close; frames under way have half a second."""
        for each in self._sockets:
            each.close()
        if self._zap is not None:
            self._zap.close()

    def _of(self, identity: bytes) -> ClientSocket:
        return self._remote if self._remote is not None and is_remote(identity) else self._local


def _allow_many_files() -> None:
    """Each connection is an open file: as many of them as the system lets this process have, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError) as error:
        logger.info("at most %d connections: the limit on open files can't be raised (%s)", soft, error)
