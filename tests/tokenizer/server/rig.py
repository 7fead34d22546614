"""Real sockets around the scripted runtime, and a client of pyzmq alone."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import zmq

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.server import Server
from tests.tokenizer.programs.harness import FakeCompiler, FakeRuntime, config, text_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from radixserve_tokenizer.config import TokenizerConfig

M = TypeVar("M")
PATIENCE_S = 30.0


class RuntimeThread:
    """The scripted runtime behind a real ROUTER."""

    def __init__(self, address: str, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.address = address
        self.is_silent = False
        self._stop = threading.Event()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._bound.wait(PATIENCE_S)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(self.address)
        self._bound.set()
        peer, next_beat = b"", 0.0
        while not self._stop.is_set():
            if router.poll(5):
                peer, frame = router.recv_multipart()
                self.runtime.take(rt.decode_to_runtime(frame))
            if peer and not self.is_silent and time.monotonic() > next_beat:
                next_beat = time.monotonic() + 0.1
                self.runtime.out.append(rt.Heartbeat(stats=rt.Stats()))
            out, self.runtime.out = self.runtime.out, []
            if peer and out:
                router.send_multipart([peer, rt.encode(out)])
        router.close()
        context.term()


class Curve(NamedTuple):
    """Keys of a connection over TCP."""

    server_public: bytes
    public: bytes
    secret: bytes


class RawClient:
    """A DEALER that speaks the protocol and nothing else."""

    def __init__(self, address: str, *, hwm: int = 1000, curve: Curve | None = None, routing_id: bytes = b"") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        if curve is not None:
            self.socket.curve_serverkey, self.socket.curve_publickey, self.socket.curve_secretkey = curve
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, hwm)
        self.socket.connect(address)
        self.seen: list[wire.Event] = []

    def send(self, *messages: wire.FromClient) -> None:
        self.socket.send(wire.encode(list(messages)))

    def wait(self, kind: type[M], **fields: object) -> M:
        """The first event of this kind with these fields, seen already or coming."""

        def fits(event: wire.Event) -> bool:
            return isinstance(event, kind) and all(getattr(event, key) == value for key, value in fields.items())

        deadline = time.monotonic() + PATIENCE_S
        while True:
            for event in self.seen:
                if fits(event):
                    return event  # type: ignore[return-value]
            assert self.socket.poll(max(0, int(1000 * (deadline - time.monotonic())))), (
                f"no {kind.__name__}; seen: {self.seen[-5:]}"
            )
            self.seen.extend(wire.decode_events(self.socket.recv()))

    def greet(self) -> wire.Welcome:
        self.send(wire.Hello(version=1))
        return self.wait(wire.Welcome)

    def close(self) -> None:
        self.context.destroy(linger=0)


class Rig:
    """A server in a thread, its runtime in another, and addresses to reach them."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.settings: TokenizerConfig = config(
            socket=f"ipc://{folder / 'clients.sock'}", runtime_socket=f"ipc://{folder / 'runtime.sock'}", **settings
        )
        self.runtime = RuntimeThread(self.settings.runtime_socket, FakeRuntime())
        self._pipe = os.pipe()
        self.server = Server(self.settings, text_model(), FakeCompiler(), self._pipe[0])
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self._thread.start()
        self._clients: list[RawClient] = []

    def remote(self, curve: Curve | None, *, greet: bool = True, routing_id: bytes = b"") -> RawClient:
        """A client over TCP."""
        client = RawClient(self.settings.listen, curve=curve, routing_id=routing_id)
        self._clients.append(client)
        if greet:
            client.greet()
        return client

    def client(self, *, hwm: int = 1000, greet: bool = True) -> RawClient:
        client = RawClient(self.settings.socket, hwm=hwm)
        self._clients.append(client)
        if greet:
            client.greet()
        return client

    def restart_runtime(self, epoch: str) -> None:
        """The runtime's process ends and another begins."""
        self.runtime.stop()
        fresh = FakeRuntime(epoch=epoch)
        fresh.hold = self.runtime.runtime.hold
        self.runtime = RuntimeThread(self.settings.runtime_socket, fresh)

    def close(self) -> None:
        self.server.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        for client in self._clients:
            client.close()
        self.runtime.stop()
        for end in self._pipe:
            os.close(end)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds; fail if it takes unreasonably long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@contextmanager
def rig(**settings: object) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="rs-") as folder:
        it = Rig(Path(folder), **settings)
        try:
            yield it
        finally:
            it.close()
