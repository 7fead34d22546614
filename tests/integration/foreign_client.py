"""A client by docs/protocol.md alone: pyzmq and msgpack, and nothing of RadixServe."""

from __future__ import annotations

import time
from typing import Any, Self

import msgpack
import zmq

Message = dict[str, Any]


class ForeignClient:
    """One connection. Events that nobody waited for are kept in `inbox`."""

    def __init__(self, url: str, *, keys: tuple[str, str, str] | None = None) -> None:
        """`keys`: the server's public one and the own pair, for `tcp://`."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if keys is not None:
            self._socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys[0])
            self._socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys[1])
            self._socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys[2])
        self._socket.connect(url)
        self.inbox: list[Message] = []

    def send(self, *messages: Message) -> None:
        """One frame."""
        self._socket.send(msgpack.packb(list(messages)))

    def send_raw(self, *frames: bytes) -> None:
        """Whatever it is."""
        self._socket.send_multipart(list(frames))

    def wait(self, kind: str, timeout_s: float = 20.0, **fields: Any) -> Message:
        """The first event of that kind with these fields, taken out of the inbox."""
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self.inbox:
                if event["t"] == kind and all(event.get(name) == value for name, value in fields.items()):
                    self.inbox.remove(event)
                    return event
            left_ms = int((deadline - time.monotonic()) * 1000)
            assert left_ms > 0, f"no {kind} {fields} came; there is {self.inbox}"
            if self._socket.poll(min(left_ms, 500)):
                self.inbox += msgpack.unpackb(self._socket.recv())
            else:
                self.send({"t": "ping"})

    def hello(self) -> Message:
        """Greet; returns the welcome."""
        self.send({"t": "hello", "version": 1, "client": "foreign"})
        return self.wait("welcome")

    def quiet(self, program: int) -> list[Message]:
        """What has come of a program, after all that was asked until now has been handled."""
        self.send({"t": "query", "id": 999_999, "kind": "health"})
        self.wait("reply", id=999_999)
        return [event for event in self.inbox if event.get("program") == program]

    def close(self) -> None:
        """Leave without a word."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Ops:
    """Makes the ops of one program, with its numbers."""

    def __init__(self, program: int) -> None:
        self.program = program
        self._op = -1
        self._var = -1

    def op(self, kind: str, branch: int = 0, **fields: Any) -> Message:
        """An op without a value."""
        self._op += 1
        return {"t": kind, "program": self.program, "op": self._op, "branch": branch, **fields}

    def value(self, kind: str, branch: int = 0, **fields: Any) -> Message:
        """An op with one."""
        self._var += 1
        return self.op(kind, branch, var=self._var, **fields)

    def say(self, text: str, branch: int = 0, role: str = "user") -> Message:
        """A message of the chat."""
        return self.op("append", branch, parts=[{"t": "text", "text": text}], role=role)

    def gen(self, branch: int = 0, max_tokens: int = 8, **fields: Any) -> Message:
        """A generation that is the same each time."""
        return self.value("gen", branch, sampling={"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}, **fields)

    def open(self, **fields: Any) -> Message:
        """The first message."""
        return {"t": "open", "program": self.program, **fields}

    def close(self) -> Message:
        """The last one."""
        return {"t": "close", "program": self.program}
