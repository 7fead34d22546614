"""A TCP line to a server that tests can cut, or let swallow what goes over it."""

from __future__ import annotations

import contextlib
import socket
import threading


class Line:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self.num_connections = 0
        self.is_dead = False
        """Nothing comes through, and neither end is told; connections that are made meanwhile lead nowhere, for good."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            if self.is_dead:
                self._open.append(near)
                continue
            far = socket.create_connection(("127.0.0.1", self._to))
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self.is_dead:
                    target.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        """Both ends see it at once."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def close(self) -> None:
        """No more."""
        self._listener.close()
        self.cut()
