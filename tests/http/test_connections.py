"""Clients that open connections and send the head of a request slowly, or not at all, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from radixserve.http.config import HttpConfig
from tests.http.harness import TEXT, Live, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.http.fake_engine import FakeClient

HEAD = b"GET /version HTTP/1.1\r\nHost: x\r\n"
ASK = {"model": "tiny", "prompt": "x"}


def connect(server: Live) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received


def read_one(connection: socket.socket) -> bytes:
    """One answer that is not empty and has a length."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")).split(b":")[1])
    while len(body) < length:
        body += connection.recv(65_536)
    return head


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]


@pytest.fixture
def hasty(fake: FakeClient) -> Iterator[Live]:
    settings = HttpConfig(port=0, served_names=("tiny",), drain_timeout_s=1.0, header_timeout_s=0.4, max_connections=4)
    with running(fake, settings) as server:
        yield server


def trickle(connection: socket.socket, data: bytes) -> bytes:
    """Send `data` again and again, byte by byte, until the server closes; what it has answered."""
    connection.settimeout(0.02)
    deadline = time.monotonic() + 20
    received = b""
    while time.monotonic() < deadline:
        for byte in data:
            try:
                connection.sendall(bytes([byte]))
                more = connection.recv(65_536)
            except TimeoutError:
                continue
            except ConnectionError:
                return received
            if not more:
                return received
            received += more
    raise AssertionError("the server never closed")


def test_a_head_that_stops_is_a_408(hasty: Live) -> None:
    with connect(hasty) as connection:
        connection.sendall(HEAD)
        assert error_of(read_all(connection)) == (408, "request_timeout")


def test_a_head_that_trickles_wins_no_time(hasty: Live) -> None:
    with connect(hasty) as connection:
        connection.sendall(HEAD)
        assert b" 408 " in trickle(connection, b"x-header: value\r\n")


def test_a_connection_without_a_byte_is_closed_without_a_word(hasty: Live) -> None:
    with connect(hasty) as connection:
        assert read_all(connection) == b""


def test_the_second_head_has_its_time_too(hasty: Live) -> None:
    with connect(hasty) as connection:
        for _ in range(3):
            time.sleep(0.2)  # together longer than one head may take
            connection.sendall(HEAD + b"\r\n")
            assert b" 200 " in read_one(connection)
        connection.sendall(b"G")
        assert error_of(read_all(connection)) == (408, "request_timeout")


def test_two_requests_at_once_then_half_of_one(hasty: Live) -> None:
    with connect(hasty) as connection:
        connection.sendall(2 * (HEAD + b"\r\n") + b"GET")
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 200 ") == 2


def test_a_body_that_trickles_on_after_its_answer_ends(hasty: Live) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
        assert b" 404 " in trickle(connection, b"x" * 1000)


def test_a_long_answer_is_no_head(hasty: Live, fake: FakeClient) -> None:
    play = fake.handler

    def slow(channel, messages):
        time.sleep(1.0)
        play(channel, messages)

    fake.handler = slow
    assert httpx.post(f"{hasty.url}{TEXT}", json=ASK).status_code == 200


@pytest.fixture
def patient(fake: FakeClient) -> Iterator[Live]:
    settings = HttpConfig(port=0, served_names=("tiny",), drain_timeout_s=1.0, header_timeout_s=60.0, max_connections=4)
    with running(fake, settings) as server:
        yield server


def test_one_connection_too_many_is_told_so(patient: Live, fake: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=patient.url))
        assert client.post(TEXT, json=ASK).status_code == 200
        idle = [stack.enter_context(connect(patient)) for _ in range(3)]
        for path in (TEXT, "/v1/messages"):
            refused = httpx.post(patient.url + path, json=ASK)
            assert (refused.status_code, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")
        assert refused.json()["type"] == "error"
        fake.answers["health"] = {"status": "ok"}
        assert httpx.get(f"{patient.url}/health").status_code == 200  # a busy server is not a dead one
        assert client.post(TEXT, json=ASK).status_code == 200  # who was there before is served
        for one in idle:
            one.close()
        deadline = time.monotonic() + 20
        while httpx.get(f"{patient.url}/version").status_code != 200:
            assert time.monotonic() < deadline
    assert sum("connections were refused" in record.message for record in caplog.records) == 1


def test_many_too_many_are_cut_off(patient: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixserve.http.connections._MAX_TOLD", 1)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connect(patient))
        time.sleep(0.1)
        with connect(patient) as connection:
            assert read_nothing(connection)


def read_nothing(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
