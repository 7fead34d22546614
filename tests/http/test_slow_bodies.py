"""Clients that send their body slowly, or stop in the middle of it, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from radixserve.http.config import HttpConfig
from tests.http.fake_engine import Script, scripted
from tests.http.harness import CHAT, TEXT, Live, running

if TYPE_CHECKING:
    from tests.http.fake_engine import FakeClient

SETTINGS = HttpConfig(port=0, served_names=("tiny",), drain_timeout_s=1.0, body_timeout_s=0.3)


def head(path: str, length: int, more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received


def connect(server: Live) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.fixture
def hasty(fake: FakeClient):
    with running(fake, SETTINGS) as server:
        yield server


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("begin", [b"", b'{"model": "tiny", '])
def test_a_body_that_stops_is_a_408_and_the_connection_ends(hasty, fake, path, begin):
    with connect(hasty) as connection:
        connection.sendall(head(path, 1000) + begin)
        answer = read_all(connection)
    status, _, rest = answer.partition(b"\r\n")
    assert b" 408 " in status
    error = json.loads(rest.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["type"]) == ("request_timeout", "invalid_request_error")
    assert "0.3 seconds" in error["message"]
    assert fake.channels == []
    assert httpx.post(f"{hasty.url}{TEXT}", json={"model": "tiny", "prompt": "x"}).status_code == 200


def test_bytes_that_trickle_do_not_win_time(hasty):
    with connect(hasty) as connection:
        connection.sendall(head(TEXT, 100_000))
        connection.settimeout(0.02)
        received, deadline = b"", time.monotonic() + 20
        while not received and time.monotonic() < deadline:
            connection.sendall(b" ")
            try:
                received = connection.recv(100)
            except TimeoutError:
                continue
    assert b" 408 " in received


def test_an_answer_may_take_longer_than_a_body(hasty, fake):
    def slow(channel, messages):
        time.sleep(0.8)
        scripted(Script())(channel, messages)

    fake.handler = slow
    assert httpx.post(f"{hasty.url}{TEXT}", json={"model": "tiny", "prompt": "x"}).status_code == 200
