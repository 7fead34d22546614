"""Clients that go away or do not read, over real sockets (reported bug 9)."""

from __future__ import annotations

import json
import socket
import threading
import time

import httpx
import pytest

from radixserve.http.config import HttpConfig
from radixserve_tokenizer.protocol import Admitted, Credit, Delta, Done, Gen
from tests.http.fake_engine import silent
from tests.http.harness import CHAT, TEXT, running

BODIES = [
    (CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}),
    (TEXT, {"model": "tiny", "prompt": "x", "n": 2}),
]


class Endless:
    """Writes for ever, as fast as its credits allow; what has no credit coalesces into the next delta."""

    def __init__(self, text="word " * 200):
        self.text = text
        self.spent = {}
        self.granted = {}
        self.changed = threading.Condition()

    def __call__(self, channel, messages):
        for message in messages:
            if isinstance(message, Credit):
                with self.changed:
                    self.granted[channel.program] += message.amount
                    self.changed.notify_all()
            elif isinstance(message, Gen):
                channel.say(Admitted(program=channel.program))
                self.spent[channel.program] = 0
                self.granted[channel.program] = channel.opening["credits"]
                threading.Thread(target=self.write, args=(channel, message), daemon=True).start()

    def write(self, channel, gen):
        while not channel.closed.is_set():
            with self.changed:
                if not self.changed.wait_for(lambda: self.spent[channel.program] < self.granted[channel.program], timeout=0.05):
                    continue
                self.spent[channel.program] += 1
            channel.say(Delta(program=channel.program, op=gen.op, var=gen.var, text=self.text))
            time.sleep(0.0005)


def eventually(condition):
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def raw_request(url, path, body):
    """A socket with the request sent and nothing read."""
    payload = json.dumps(body).encode()
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_bug_09_stream_closed_after_a_chunk(live, path, body):
    live.client.answers["stats"] = {}
    live.client.handler = Endless()
    with httpx.stream("POST", live.url + path, json={**body, "stream": True}, timeout=10) as answer:
        next(answer.iter_lines())
    assert live.client.last.closed.wait(10)
    eventually(lambda: "radixserve:request_disconnected_total" in httpx.get(f"{live.url}/metrics").text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_bug_09_gone_before_the_first_token(live, path, body, stream):
    """Nothing is written yet, so only the closed connection can tell."""
    live.client.handler = silent
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(live.url + path, json={**body, "stream": stream}, timeout=0.3)
    assert live.client.last.closed.wait(10)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_who_reads_nothing_is_cut_off(fake, path, body):
    """It held its program and its connection for as long as it liked."""
    fake.handler = Endless("word " * 2000)
    with running(fake, HttpConfig(port=0, served_names=("tiny",), drain_timeout_s=1.0, stall_timeout_s=1.5)) as live:
        with raw_request(live.url, path, {**body, "stream": True}):
            eventually(lambda: fake.channels)
            assert fake.last.closed.wait(15)
        # Who reads slowly is not.
        with httpx.stream("POST", live.url + path, json={**body, "stream": True}, timeout=10) as answer:
            read = answer.iter_raw(1 << 16)
            ends = time.monotonic() + 2.5
            while time.monotonic() < ends:
                next(read)
                time.sleep(0.005)
            assert not fake.last.closed.is_set()


def test_bug_09_others_go_on(live):
    live.client.handler = Endless("x")
    path, body = BODIES[0]
    with httpx.stream("POST", live.url + path, json={**body, "stream": True}, timeout=10) as first:
        lines = first.iter_lines()
        next(lines)
        with httpx.stream("POST", live.url + path, json={**body, "stream": True}, timeout=10) as second:
            next(second.iter_lines())
        assert live.client.channels[1].closed.wait(10)
        assert not live.client.channels[0].closed.is_set()
        for _ in range(200):
            next(lines)


def test_a_reader_that_stalls_costs_its_credits_and_stops_nobody(live):
    endless = live.client.handler = Endless("x" * 4000)
    path, body = BODIES[0]
    stalled = raw_request(live.url, path, {**body, "stream": True})
    try:
        eventually(lambda: live.client.channels)
        # The sockets fill, then the credits end, and nothing more is taken from the engine.
        program = live.client.channels[0].program
        eventually(lambda: endless.spent.get(program, 0) > 0 and endless.spent[program] == endless.granted[program])
        spent = endless.spent[program]
        with httpx.stream("POST", live.url + path, json={**body, "stream": True}, timeout=10) as other:
            lines = other.iter_lines()
            for _ in range(400):
                next(lines)
        assert endless.spent[program] == spent
    finally:
        stalled.close()
    assert live.client.channels[0].closed.wait(10)


def test_credits_are_granted_as_chunks_are_written(live):
    endless = live.client.handler = Endless("x")
    path, body = BODIES[0]
    with httpx.stream("POST", live.url + path, json={**body, "stream": True}, timeout=10) as answer:
        lines = answer.iter_lines()
        for _ in range(1000):  # many times the credits
            next(lines)
    assert endless.granted[live.client.last.program] > 64


def test_shutdown_drains(live):
    """A running request is answered after the server was told to stop."""
    go = threading.Event()

    def handler(channel, messages):
        for gen in [one for one in messages if isinstance(one, Gen)]:
            channel.say(Admitted(program=channel.program))
            go.wait(10)
            channel.say(Done(program=channel.program, op=gen.op, var=gen.var, value="late"))

    live.client.handler = handler
    answers = []
    path, body = BODIES[0]
    asking = threading.Thread(target=lambda: answers.append(httpx.post(live.url + path, json=body, timeout=10)))
    asking.start()
    eventually(lambda: live.client.channels)
    live.server.should_exit = True
    eventually(lambda: not live.server.servers or not live.server.servers[0].is_serving())
    go.set()
    asking.join(10)
    assert answers[0].json()["choices"][0]["message"]["content"] == "late"


def test_shutdown_ends_what_does_not_end(live):
    live.client.handler = Endless()
    path, body = BODIES[0]
    with httpx.stream("POST", live.url + path, json={**body, "stream": True}, timeout=20) as answer:
        next(answer.iter_lines())
        live.server.should_exit = True
        assert live.client.last.closed.wait(15)


def test_a_large_body_gets_its_413(live):
    answer = httpx.post(live.url + CHAT, content=b"x" * (9 << 20), headers={"content-type": "application/json"}, timeout=20)
    assert answer.status_code == 413
