"""Real processes: one server of the real model for the whole run, and small engines on a tiny random model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Server:
    """A `radixserve serve` process."""

    url: str
    process: subprocess.Popen[bytes]
    http: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": "default", **body})

    def complete(self, **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chat(self, **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/chat/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str) -> float:
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith((f"radixserve:{name}{{", f"radixserve:{name} ")):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric radixserve:{name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(model: str, *flags: str, ready_s: float = 120.0) -> Iterator[Server]:
    """Start a server, wait until it is healthy, end it with SIGTERM."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "radixserve.cli",
        "serve",
        model,
        "--port",
        str(port),
        "--served-model-name",
        "default",
        *flags,
    ]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    url = f"http://127.0.0.1:{port}"
    http = httpx.Client(base_url=url, timeout=120.0)
    try:
        deadline = time.monotonic() + ready_s
        while True:
            assert process.poll() is None, f"the server ended with status {process.returncode}"
            assert time.monotonic() < deadline, "the server did not become healthy"
            try:
                if http.get("/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        yield Server(url, process, http)
    finally:
        http.close()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[Server]:
    """The real model with default settings, but float32, so that answers can be compared."""
    with serving(str(smollm2_path), "--dtype", "float32", "--kv-tokens", "32768") as running:
        yield running


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a byte-level tokenizer and a ChatML template."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")
