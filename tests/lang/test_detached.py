"""Detached programs: what the client does when the connection breaks, and when another process takes a program up."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_tokenizer.protocol import (
    Admitted,
    Append,
    Attach,
    Attached,
    Cancel,
    Close,
    Credit,
    Delta,
    Done,
    Drop,
    Event,
    Failed,
    Gen,
    Goodbye,
    Open,
    Refused,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.channel import Channel
    from radixserve_lang.client import Client
    from tests.lang.fake_server import FakeServer

Events = queue.SimpleQueue[Event]
KEY = "a secret of the test"


def append(channel: Channel) -> Append:
    return Append(program=channel.program, op=channel.next_op(), branch=0, parts=(Text(text="x"),))


def gen(channel: Channel) -> Gen:
    return Gen(program=channel.program, op=channel.next_op(), branch=0, var=channel.next_var())


def done(channel: Channel, op: int, value: str = "ok") -> Done:
    return Done(program=channel.program, op=op, var=0, value=value)


def attached(channel: Channel, next_op: int) -> Attached:
    return Attached(program=channel.program, next_op=next_op, next_var=0, next_branch=1)


def started(client: Client, server: FakeServer, **more: Any) -> tuple[Channel, Events]:
    """An admitted program with ops 0 (append) and 1 (a gen that runs)."""
    server.answer = lambda gen: None
    heard: Events = queue.SimpleQueue()
    channel = client.open(heard.put, credits=0, detached_ttl_s=30.0, **more)
    channel.send(append(channel), gen(channel), flush=True)
    assert isinstance(heard.get(timeout=5), Admitted)
    server.wait_for(Gen)
    return channel, heard


def test_a_broken_connection_is_not_noticed(client: Client, server: FakeServer, start_server: Callable[..., FakeServer]) -> None:
    channel, heard = started(client, server)
    opened = server.of(Open)[0]
    assert len(opened.resume_key) >= 16
    server.stop()
    channel.send(append(channel), flush=True)
    channel.send(Cancel(program=channel.program, branches=(7,)), flush=True)
    back = start_server(epoch=server.epoch, on_attach=lambda m: [attached(channel, 2), done(channel, 1)])
    assert heard.get(timeout=5) == done(channel, 1)
    assert back.of(Attach) == [Attach(program=channel.program, resume_key=opened.resume_key, from_op=1, credits=0)]
    assert [message.op for message in back.wait_for(Append)] == [2]
    assert len(back.wait_for(Cancel)) == 1
    assert not back.of(Open)
    channel.close()
    assert len(back.wait_for(Close)) == 1
    assert heard.empty()


def test_what_never_arrived_is_sent_again_and_what_did_is_not(
    client: Client, server: FakeServer, start_server: Callable[..., FakeServer]
) -> None:
    channel, heard = started(client, server)
    server.send(done(channel, 1))
    assert heard.get(timeout=5) == done(channel, 1)
    server.paused = True
    channel.send(append(channel), append(channel), gen(channel), flush=True)
    server.stop()
    back = start_server(epoch=server.epoch, on_attach=lambda m: [attached(channel, 3)])
    back.answer = lambda gen: "again"
    assert [message.op for message in back.wait_for(Append)] == [3]
    assert [message.op for message in back.wait_for(Gen)] == [4]
    assert back.of(Attach)[0].from_op == 4
    assert isinstance(answer := heard.get(timeout=5), Done)
    assert answer.value == "again"


def test_a_stream_goes_on_where_it_broke_off(client: Client, server: FakeServer, start_server: Callable[..., FakeServer]) -> None:
    channel, heard = started(client, server)
    channel.grant(4)
    server.wait_for(Credit)

    def delta(text: str, *ids: int) -> Delta:
        return Delta(program=channel.program, op=1, var=0, text=text, token_ids=ids)

    server.send(delta("one ", 1))
    assert heard.get(timeout=5) == delta("one ", 1)
    server.stop()
    # The first delta after an attach begins at the beginning.
    events = [attached(channel, 2), delta("one two ", 1, 2), delta("three ", 3), done(channel, 1, "one two three ")]
    back = start_server(epoch=server.epoch, on_attach=lambda m: events)
    assert [heard.get(timeout=5) for _ in range(3)] == [delta("two ", 2), delta("three ", 3), events[-1]]
    assert back.of(Attach)[0].credits == 64


def test_an_open_that_never_arrived_is_sent_after_all(
    client: Client, server: FakeServer, start_server: Callable[..., FakeServer]
) -> None:
    _ = client.welcome
    server.silent = True
    heard: Events = queue.SimpleQueue()
    channel = client.open(heard.put, credits=0, detached_ttl_s=30.0)
    channel.send(gen(channel), flush=True)
    server.wait_for(Gen)
    server.stop()
    refused = Refused(program=channel.program, status=404, code="unknown_program", message="no such program")
    back = start_server(epoch=server.epoch, on_attach=lambda m: [refused])
    assert isinstance(heard.get(timeout=5), Admitted)
    assert isinstance(heard.get(timeout=5), Done)
    assert len(back.of(Open)) == len(back.of(Gen)) == 1


def test_a_program_that_is_gone_says_so(client: Client, server: FakeServer, start_server: Callable[..., FakeServer]) -> None:
    channel, heard = started(client, server)
    server.stop()
    refused = Refused(program=channel.program, status=404, code="unknown_program", message="no such program")
    start_server(epoch=server.epoch, on_attach=lambda m: [refused])
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert "can't be taken up again: no such program" in goodbye.message


def test_another_epoch_ends_it(client: Client, server: FakeServer, start_server: Callable[..., FakeServer]) -> None:
    _, heard = started(client, server)
    server.stop()
    back = start_server()
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert "restarted" in goodbye.message
    assert not back.of(Attach)


def test_after_its_ttl_it_is_given_up(client: Client, server: FakeServer) -> None:
    server.answer = lambda gen: None
    heard: Events = queue.SimpleQueue()
    channel = client.open(heard.put, detached_ttl_s=0.2)
    channel.send(gen(channel), flush=True)
    assert isinstance(heard.get(timeout=5), Admitted)
    server.stop()
    assert isinstance(goodbye := heard.get(timeout=5), Goodbye)
    assert "TTL" in goodbye.message


def test_another_process_takes_a_program_up(client: Client, server: FakeServer) -> None:
    """It sends all its ops anew; those that the server knows don't leave, and their values come as they are stored."""
    heard: Events = queue.SimpleQueue()
    server.on_attach = lambda m: [
        Attached(program=m.program, next_op=4, next_var=2, next_branch=3),
        Done(program=m.program, op=1, var=0, value="stored"),
        Failed(program=m.program, op=3, var=1, code="boom", message="stored too"),
    ]
    channel = client.open(heard.put, credits=0, detached_ttl_s=30.0, resume_key=KEY, seed=3)
    assert server.wait_for(Attach) == [Attach(program=channel.program, resume_key=KEY, from_op=0, credits=0)]
    assert isinstance(heard.get(timeout=5), Admitted)
    client.query("health").result(5)
    assert heard.empty()  # nobody has asked for the values yet
    channel.send(append(channel), gen(channel), flush=True)
    assert isinstance(first := heard.get(timeout=5), Done)
    assert first.value == "stored"
    channel.send(append(channel), gen(channel), append(channel), gen(channel), flush=True)
    assert isinstance(second := heard.get(timeout=5), Failed)
    assert second.op == 3
    assert isinstance(third := heard.get(timeout=5), Done)
    assert (third.op, third.value) == (5, "ok")
    assert [message.op for message in server.of(Append)] == [4]
    assert [message.op for message in server.of(Gen)] == [5]
    assert not server.of(Open)


def test_a_key_that_nobody_knows_opens_the_program(client: Client, server: FakeServer) -> None:
    heard: Events = queue.SimpleQueue()
    server.on_attach = lambda m: [Refused(program=m.program, status=404, code="unknown_program", message="no such program")]
    channel = client.open(heard.put, credits=0, detached_ttl_s=30.0, resume_key=KEY)
    channel.send(append(channel), gen(channel), flush=True)
    assert isinstance(heard.get(timeout=5), Admitted)
    assert isinstance(heard.get(timeout=5), Done)
    (opened,) = server.of(Open)
    assert (opened.resume_key, opened.detached_ttl_s) == (KEY, 30.0)
    assert len(server.of(Append)) == len(server.of(Gen)) == 1


@pytest.mark.parametrize("drop", [Drop, Cancel])
def test_drops_are_kept_until_they_have_arrived(
    client: Client, server: FakeServer, start_server: Callable[..., FakeServer], drop: type[Drop | Cancel]
) -> None:
    channel, _ = started(client, server)
    channel.send(drop(program=channel.program, branches=(0,)), flush=True)
    server.wait_for(drop)
    server.stop()
    back = start_server(epoch=server.epoch, on_attach=lambda m: [attached(channel, 2)])
    assert len(back.wait_for(drop)) == 1


def test_closing_the_client_leaves_it_running(client: Client, server: FakeServer) -> None:
    _, heard = started(client, server)
    other = client.open(lambda event: None)
    other.flush()
    server.wait_for(Open, 2)
    client.close()
    assert [message.program for message in server.wait_for(Close)] == [other.program]
    assert isinstance(heard.get(timeout=5), Goodbye)


def test_a_program_that_was_closed_meanwhile_is_closed_on_return(
    client: Client, server: FakeServer, start_server: Callable[..., FakeServer]
) -> None:
    channel, heard = started(client, server)
    other, _ = started(client, server)
    server.stop()
    while not other._tether.is_parted:  # type: ignore[union-attr]
        time.sleep(0.005)
    channel.close()
    answers = {channel.program: attached(channel, 2), other.program: attached(other, 2)}
    back = start_server(epoch=server.epoch, on_attach=lambda m: [answers[m.program]])
    assert [message.program for message in back.wait_for(Close)] == [channel.program]
    assert len(back.wait_for(Attach, 2)) == 2
    client.query("health").result(5)
    assert {peer.number for peer, _ in client.transport.peers.tethered()} == {other.program}
    assert heard.empty()
