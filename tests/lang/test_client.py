"""The low-level client: numbers, frames, credits, loss and return of the server."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_lang.client import Client
from radixserve_lang.errors import ClientClosedError, ConnectionFailedError, QueryFailedError
from radixserve_tokenizer.protocol import (
    MAX_FRAME_BYTES,
    Admitted,
    Append,
    Close,
    Credit,
    Done,
    Event,
    Failed,
    Gen,
    Goodbye,
    Hello,
    Open,
    Ping,
    Pong,
    Query,
    Refused,
    Reply,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lang.fake_server import FakeServer

Events = queue.SimpleQueue[Event]


def append(program: int, op: int, text: str = "x") -> Append:
    return Append(program=program, op=op, branch=0, parts=(Text(text=text),))


def test_welcome_names_the_model(client: Client, server: FakeServer) -> None:
    assert client.welcome.model.name == "fake"
    assert client.welcome.epoch == server.epoch
    hello = server.messages[0]
    assert isinstance(hello, Hello)


def test_numbers_count_up_within_a_program(client: Client) -> None:
    channel = client.open(lambda event: None)
    other = client.open(lambda event: None)
    assert [channel.next_op() for _ in range(3)] == [0, 1, 2]
    assert [channel.next_var() for _ in range(2)] == [0, 1]
    assert [channel.next_branches(4), channel.next_branches(1), channel.next_branches(2)] == [1, 5, 6]
    assert (other.next_op(), other.next_var(), other.next_branches(1)) == (0, 0, 1)
    assert other.program != channel.program


def test_what_is_buffered_leaves_in_one_frame(client: Client, server: FakeServer) -> None:
    heard: Events = queue.SimpleQueue()
    channel = client.open(heard.put, api_key="k", seed=7)
    for op in range(20):
        channel.send(append(channel.program, op))
    channel.send(Gen(program=channel.program, op=20, branch=0, var=0), flush=True)
    assert heard.get(timeout=5) == Admitted(program=channel.program)
    assert isinstance(heard.get(timeout=5), Done)
    (frame,) = server.op_frames()
    assert frame[0] == Open(program=channel.program, api_key="k", seed=7)
    assert len(frame) == 22


def test_a_timer_flushes_what_nobody_does(server: FakeServer, start_client: Callable[..., Client]) -> None:
    channel = start_client(flush_after_s=0.002).open(lambda event: None)
    channel.send(append(channel.program, 0), append(channel.program, 1))
    server.wait_for(Append, 2)
    assert len(server.op_frames()) == 1
    channel.send(append(channel.program, 2))
    server.wait_for(Append, 3)
    assert len(server.op_frames()) == 2


def test_a_full_buffer_leaves_by_itself(client: Client, server: FakeServer) -> None:
    channel = client.open(lambda event: None)
    for op in range(1500):
        channel.send(append(channel.program, op))
    assert len(server.wait_for(Append, 1000)) < 1500
    channel.flush()
    assert [message.op for message in server.wait_for(Append, 1500)] == list(range(1500))


def test_a_stretch_larger_than_a_frame_is_split_in_order(client: Client, server: FakeServer) -> None:
    channel = client.open(lambda event: None)
    channel.send(*(append(channel.program, op, "y" * (3 << 20)) for op in range(12)))
    channel.flush()
    assert [message.op for message in server.wait_for(Append, 12, timeout_s=20)] == list(range(12))
    assert len(server.op_frames()) >= 3


def test_a_server_that_does_not_read_loses_nothing(client: Client, server: FakeServer) -> None:
    _ = client.welcome
    server.paused = True
    channel = client.open(lambda event: None)
    for op in range(6000):
        channel.send(append(channel.program, op, "x" * 300), flush=True)
    server.paused = False
    assert [message.op for message in server.wait_for(Append, 6000, timeout_s=30)] == list(range(6000))


@pytest.mark.parametrize("text", ["\ud800", "z" * MAX_FRAME_BYTES, 3, None])
def test_what_cannot_be_sent_is_an_error_at_the_call(client: Client, server: FakeServer, text: Any) -> None:
    channel = client.open(lambda event: None)
    with pytest.raises(ValueError, match="this Append"):
        channel.send(append(channel.program, 0), append(channel.program, 1, text))
    channel.send(append(channel.program, 2), flush=True)
    assert [message.op for message in server.wait_for(Append)] == [2]


def test_refused_is_heard(client: Client, server: FakeServer) -> None:
    server.on_open = lambda message: Refused(
        program=message.program, status=429, code="rate_limited", message="slow down", retry_after_s=2.0
    )
    heard: Events = queue.SimpleQueue()
    client.open(heard.put).flush()
    refused = heard.get(timeout=5)
    assert isinstance(refused, Refused)
    assert refused.status == 429


def test_grant_sends_credit(client: Client, server: FakeServer) -> None:
    channel = client.open(lambda event: None, credits=3)
    channel.grant(5)
    assert server.wait_for(Credit) == [Credit(program=channel.program, amount=5)]
    assert server.of(Open)[0].credits == 3


def test_close_ends_the_program_once(client: Client, server: FakeServer) -> None:
    heard: Events = queue.SimpleQueue()
    channel = client.open(heard.put)
    channel.send(append(channel.program, 0))
    channel.flush()
    channel.close()
    channel.close()
    assert server.wait_for(Close) == [Close(program=channel.program)]
    with pytest.raises(ClientClosedError):
        channel.send(append(channel.program, 1))
    never_started = client.open(heard.put)
    never_started.close()
    client.query("health").result(5)
    assert len(server.of(Open)) == 1


def test_query(client: Client, server: FakeServer) -> None:
    assert client.query("tokenize", {"text": "hi"}).result(5) == {"kind": "tokenize", "text": "hi"}
    server.on_query = lambda message: Reply(id=message.id, error="no such kind", status=400)
    with pytest.raises(QueryFailedError, match="no such kind") as caught:
        client.query("health").result(5)
    assert caught.value.status == 400
    assert len(server.of(Query)) == 2


def test_no_server_fails_clearly_everywhere(start_client: Callable[..., Client]) -> None:
    client = start_client(connect_timeout_s=0.2)
    heard: Events = queue.SimpleQueue()
    channel = client.open(heard.put)
    channel.flush()
    with pytest.raises(QueryFailedError, match="no server answered") as caught:
        client.query("health").result(5)
    assert caught.value.status == 503
    goodbye = heard.get(timeout=5)
    assert isinstance(goodbye, Goodbye)
    assert "is it running" in goodbye.message
    channel.send(append(channel.program, 0), flush=True)  # goes nowhere, as the goodbye said
    with pytest.raises(ConnectionFailedError, match="no server answered at ipc://"):
        _ = client.welcome


def test_a_server_that_comes_later_is_found(start_client: Callable[..., Client], start_server: Callable[..., FakeServer]) -> None:
    heard: Events = queue.SimpleQueue()
    start_client().open(heard.put).flush()
    start_server()
    assert isinstance(heard.get(timeout=5), Admitted)


def test_another_version_is_refused_at_once(start_client: Callable[..., Client], server: FakeServer) -> None:
    server.refuse_hello = "this server speaks version 2"
    heard: Events = queue.SimpleQueue()
    client = start_client(connect_timeout_s=60)
    client.open(heard.put).flush()
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert "version 2" in goodbye.message
    with pytest.raises(ConnectionFailedError, match="version 2"):
        _ = client.welcome


def test_a_crash_ends_old_programs_and_new_ones_work(
    client: Client, server: FakeServer, start_server: Callable[..., FakeServer]
) -> None:
    old: Events = queue.SimpleQueue()
    channel = client.open(old.put)
    channel.flush()
    assert isinstance(old.get(timeout=5), Admitted)
    first_epoch = client.welcome.epoch
    server.stop()
    goodbye = old.get(timeout=5)
    assert isinstance(goodbye, Goodbye)
    assert goodbye.epoch == first_epoch
    new: Events = queue.SimpleQueue()
    client.open(new.put).flush()
    second = start_server()
    assert isinstance(new.get(timeout=5), Admitted)
    assert client.welcome.epoch == second.epoch != first_epoch
    assert isinstance(second.messages[0], Hello)
    channel.send(append(channel.program, 0), flush=True)
    channel.close()
    client.query("health").result(5)
    assert not second.of(Append)
    assert old.empty()


def test_another_epoch_ends_old_programs(start_server: Callable[..., FakeServer], start_client: Callable[..., Client]) -> None:
    server = start_server(heartbeat_s=0.02)
    heard: Events = queue.SimpleQueue()
    client = start_client()
    client.open(heard.put).flush()
    assert isinstance(heard.get(timeout=5), Admitted)
    server.epoch = "another"
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert "restarted" in goodbye.message
    assert client.query("health").result(5)["kind"] == "health"
    assert client.welcome.epoch == "another"


def test_silence_is_noticed(start_server: Callable[..., FakeServer], start_client: Callable[..., Client]) -> None:
    server = start_server(heartbeat_s=0.02, client_timeout_s=0.2)
    heard: Events = queue.SimpleQueue()
    client = start_client()
    client.open(heard.put).flush()
    assert isinstance(heard.get(timeout=5), Admitted)
    server.silent = True
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert "silent for 0.2 s" in goodbye.message


def test_pings_keep_a_quiet_connection_alive(
    start_server: Callable[..., FakeServer], start_client: Callable[..., Client]
) -> None:
    server = start_server(heartbeat_s=0.01, client_timeout_s=0.5)
    client = start_client()
    _ = client.welcome
    while sum(isinstance(message, Ping) for frame in list(server.frames) for message in frame) < 70:
        threading.Event().wait(0.01)
    assert len(server.of(Hello)) == 1


def test_a_frame_that_the_server_could_not_use_ends_what_was_sent(client: Client, server: FakeServer) -> None:
    heard: Events = queue.SimpleQueue()
    client.open(heard.put).flush()
    assert isinstance(heard.get(timeout=5), Admitted)
    server.send(Failed(program=-1, op=-1, code="malformed", message="not a list"))
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert "not a list" in goodbye.message


def test_a_handler_that_raises_ends_nothing(client: Client, server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    def bad(event: Event) -> None:
        raise KeyError("mine")

    client.open(bad).flush()
    assert client.query("health").result(5)
    server.send(Pong(epoch=server.epoch))
    assert client.query("health").result(5)
    assert "a handler of Admitted raised" in caplog.text


def test_one_thread_a_client_and_none_after_close(server: FakeServer, start_client: Callable[..., Client]) -> None:
    before = threading.active_count()
    client = start_client()
    channels = [client.open(lambda event: None) for _ in range(50)]
    for channel in channels:
        channel.flush()
    server.wait_for(Open, 50)
    assert threading.active_count() == before + 1
    client.close()
    client.close()
    assert threading.active_count() == before
    assert len(server.wait_for(Close, 50)) == 50
    with pytest.raises(ClientClosedError):
        client.open(lambda event: None)
    with pytest.raises(ClientClosedError):
        client.query("health")


def test_close_is_heard_by_open_programs(client: Client, server: FakeServer) -> None:
    heard: Events = queue.SimpleQueue()
    client.open(heard.put).flush()
    assert isinstance(heard.get(timeout=5), Admitted)
    client.close()
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert goodbye.message == "the client was closed"


def test_a_forgotten_client_ends_its_thread(server: FakeServer, url: str) -> None:
    before = threading.active_count()
    client = Client(url)
    _ = client.welcome
    del client
    gc.collect()
    assert threading.active_count() == before


def test_a_forked_child_is_told_and_the_parent_goes_on(client: Client) -> None:
    _ = client.welcome
    pid = os.fork()
    if pid == 0:
        try:
            client.open(lambda event: None)
        except ClientClosedError as error:
            client.close()
            os._exit(7 if "before a fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert client.query("health").result(5)


def test_the_interpreter_ends_with_a_client_open(server: FakeServer, url: str) -> None:
    code = f"from radixserve_lang.client import Client; c = Client({url!r}); c.open(lambda e: None).flush(); print(c.welcome.model.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "fake"
    assert done.stderr == ""
    server.wait_for(Close)


def test_the_interpreter_ends_without_a_server(url: str) -> None:
    code = f"from radixserve_lang.client import Client; c = Client({url!r}); c.open(lambda e: None).flush(); print('end')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("end", "")
