"""Our HTTP server in a process of its own, over an engine that runs already: `python -m benchmarks.written_twice.http_server URL PORT`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from radixserve.http.app import create_app
from radixserve.http.config import HttpConfig
from radixserve.http.server import build_server
from radixserve_lang.client import Client

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def http_server(engine_url: str) -> Generator[tuple[str, int]]:
    """Its base URL, and its process id. Raises RuntimeError when it does not become healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.written_twice.http_server", engine_url, str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(url, process)
        yield f"{url}/v1", process.pid
    finally:
        process.terminate()
        process.wait(20)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the HTTP server did not become healthy")


def main() -> None:
    """Serve until SIGTERM."""
    settings = HttpConfig(served_names=("default",), port=int(sys.argv[2]))
    build_server(create_app(lambda: Client(sys.argv[1]), settings=settings), settings).run()


if __name__ == "__main__":
    main()
