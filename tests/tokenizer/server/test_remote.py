"""Clients on other machines: TCP, CURVE, and keys that belong to tenants."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest
import zmq

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.clients import Client
from radixserve_tokenizer.remote import RemoteSocket
from radixserve_tokenizer.wire import AddressError
from radixserve_tokenizer.zap import ZapHandler
from tests.tokenizer.programs.harness import World, append, gen, says
from tests.tokenizer.server.rig import Curve, RawClient, Rig, eventually, rig
from tests.tokenizer.tenants.people import key, tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "a secret of the client"
QUIET_MS = 500


class Machines(NamedTuple):
    """A server that listens on TCP, and the keys of two tenants and a stranger."""

    rig: Rig
    alice: Curve
    bob: Curve
    stranger: Curve
    ops: Curve


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def machines(**settings: object) -> Iterator[Machines]:
    server_public, server_secret = zmq.curve_keypair()
    pairs = [Curve(server_public, *zmq.curve_keypair()) for _ in range(4)]
    alice, bob, stranger, ops = pairs
    tenants = (
        tenant("alice", curve_keys=(alice.public.decode(),)),
        tenant("bob", curve_keys=(bob.public.decode(),)),
        tenant("ops", curve_keys=(ops.public.decode(),), admin=True),
    )
    listen = f"tcp://127.0.0.1:{free_port()}"
    with rig(tenants=tenants, listen=listen, curve_secret_key=server_secret.decode(), **settings) as it:
        yield Machines(it, alice, bob, stranger, ops)


def is_silent(client: RawClient) -> bool:
    return not client.socket.poll(QUIET_MS)


def test_the_key_is_the_tenant() -> None:
    with machines() as (it, alice, bob, _, _):
        it.runtime.runtime.scripts.append(says("AB"))
        client = it.remote(alice)
        client.send(wire.Open(program=1), append(0, "hi"), gen(1))
        assert client.wait(wire.Done).value == "AB"
        [request] = [m for m in it.runtime.runtime.received if isinstance(m, rt.Generate)]
        assert request.owner.tenant == "alice"
        client.send(wire.Open(program=2, api_key=key("alice")), wire.Open(program=3, api_key=key("bob")))
        assert client.wait(wire.Admitted, program=2)
        refused = client.wait(wire.Refused, program=3)
        assert (refused.status, refused.code) == (401, "invalid_api_key")
        other = it.remote(bob)
        other.send(wire.Open(program=1), append(0, "hi"), gen(1))
        assert other.wait(wire.Done)
        # The local socket is served beside it.
        local = it.client()
        local.send(wire.Open(program=1, api_key=key("bob")), append(0, "hi"), gen(1))
        assert local.wait(wire.Done)


def test_strangers_and_the_unencrypted_get_no_answer_and_hold_nobody_up() -> None:
    with machines() as (it, alice, _, stranger, _):
        wrong_server = alice._replace(server_public=zmq.curve_keypair()[0])
        outside = [it.remote(curve, greet=False) for curve in (stranger, None, wrong_server)]
        for client in outside:
            client.send(wire.Hello(version=1), wire.Query(id=1, kind="health"))
        assert it.remote(alice)
        assert all(is_silent(client) for client in outside)
        assert len(it.server._core._clients) == 1


def test_bytes_that_are_no_handshake_and_connections_that_say_nothing() -> None:
    with machines() as (it, alice, _, _, _):
        host, port = it.settings.listen.removeprefix("tcp://").split(":")
        raw = [socket.create_connection((host, int(port))) for _ in range(150)]
        for number, one in enumerate(raw):
            if number % 3:
                one.sendall(b"GET / HTTP/1.1\r\n\r\n" if number % 3 == 1 else b"\xff" * 4096)
        client = it.remote(alice)
        client.send(wire.Open(program=1), append(0, "hi"), gen(1))
        assert client.wait(wire.Done)
        for one in raw:
            one.close()
        assert it.remote(alice)


def test_a_flood_of_handshakes_with_wrong_keys() -> None:
    with machines() as (it, alice, _, stranger, _):
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        for _ in range(100):
            dealer = context.socket(zmq.DEALER)
            dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = stranger
            dealer.connect(it.settings.listen)
        client = it.remote(alice)
        client.send(wire.Open(program=1), append(0, "hi"), gen(1))
        assert client.wait(wire.Done)
        context.destroy(linger=0)


def test_frames_that_are_too_large_or_no_messages() -> None:
    with machines() as (it, alice, bob, _, _):
        client, hostile = it.remote(alice), it.remote(bob)
        hostile.socket.send(b"\xc1 no msgpack")
        assert hostile.wait(wire.Failed).code == "malformed"
        hostile.socket.send_multipart([wire.encode([wire.Ping()])] * 20_000)
        hostile.socket.send(b"\0" * wire.MAX_FRAME_BYTES)
        eventually(lambda: hostile.socket.poll(100) and _has_failed(hostile, 3))
        hostile.socket.send(b"\0" * (wire.MAX_FRAME_BYTES + 1024))
        client.send(wire.Open(program=1), append(0, "hi"), gen(1))
        assert client.wait(wire.Done)
        assert it.remote(bob), "whose connection was closed may come back"


def _has_failed(client: RawClient, times: int) -> bool:
    """Whether so many frames were answered as malformed."""
    client.seen.extend(wire.decode_events(client.socket.recv()))
    return sum(isinstance(event, wire.Failed) for event in client.seen) == times


def test_who_says_nothing_first_is_turned_away() -> None:
    with machines() as (it, alice, _, _, _):
        client = it.remote(alice, greet=False)
        client.send(wire.Open(program=1))
        assert "did not say Hello" in client.wait(wire.Goodbye).message


def test_a_client_may_not_choose_its_name() -> None:
    with machines() as (it, alice, _, _, _):
        client = it.remote(alice, greet=False, routing_id=b"alice")
        client.send(wire.Hello(version=1))
        assert "routing id" in client.wait(wire.Goodbye).message
        assert not it.server._core._clients


def test_a_client_that_vanishes_is_cleaned_up() -> None:
    with machines(client_timeout_s=0.5) as (it, alice, bob, _, _):
        it.runtime.runtime.hold = True
        gone, stays = it.remote(alice), it.remote(bob)
        gone.send(wire.Open(program=1), append(0, "hello"), gen(1))
        eventually(lambda: len(it.runtime.runtime.requests) == 1)
        gone.close()

        def cancelled() -> bool:
            stays.send(wire.Ping())
            return not it.runtime.runtime.requests

        eventually(cancelled)


def test_a_detached_program_is_its_tenants_alone() -> None:
    with machines() as (it, alice, bob, _, _):
        first = it.remote(alice)
        first.send(wire.Open(program=1, detached_ttl_s=60, resume_key=KEY), append(0, "hi"), gen(1))
        assert first.wait(wire.Done)
        other, second = it.remote(bob), it.remote(alice)
        other.send(wire.Attach(program=1, resume_key=KEY))
        assert other.wait(wire.Refused).status == 404
        second.send(wire.Attach(program=5, resume_key=KEY))
        assert second.wait(wire.Done).program == 5
        assert first.wait(wire.Failed).code == "taken_over"


def test_queries_over_tcp_are_for_tenants_and_what_is_everybodys_for_admins() -> None:
    with machines() as (it, alice, _, _, ops):
        client, admin = it.remote(alice), it.remote(ops)

        def status(asking: RawClient, number: int, kind: str, **fields: object) -> int:
            asking.send(wire.Query(id=number, kind=kind, **fields))  # type: ignore[arg-type]
            return asking.wait(wire.Reply, id=number).status

        kinds = [("health", {}), ("tokenize", {"text": "a"}), ("detokenize", {"ids": [5]}), ("usage", {})]
        assert [status(client, number, kind, body=body) for number, (kind, body) in enumerate(kinds)] == [200] * 4
        assert set(client.wait(wire.Reply, id=3).body["tenants"]) == {"alice"}
        assert [status(client, 10 + number, kind) for number, kind in enumerate(("stats", "reset_cache"))] == [403, 403]
        assert status(client, 20, "usage", api_key=key("bob")) == 401
        assert status(client, 21, "tokenize", api_key=key("bob"), body={"text": "a"}) == 401
        assert [status(admin, number, kind) for number, kind in enumerate(("stats", "reset_cache", "usage"))] == [200] * 3
        assert set(admin.wait(wire.Reply, id=2).body["tenants"]) == {"alice", "bob", "ops"}
        local = it.client()
        assert status(local, 1, "stats") == 200


def test_who_reads_late_loses_nothing() -> None:
    with machines() as (it, alice, bob, _, _):
        slow, quick = it.remote(alice), it.remote(bob)
        for number in range(3000):
            slow.send(wire.Query(id=number, kind="health"))
        quick.send(wire.Open(program=1), append(0, "hello"), gen(1))
        assert quick.wait(wire.Done)
        slow.wait(wire.Reply, id=2999)
        assert [event.id for event in slow.seen if isinstance(event, wire.Reply)] == list(range(3000))


def test_one_connection_has_so_many_queries_waiting_and_no_more() -> None:
    queries = World().core._queries
    remote, local = (Client(b"x", 0.0, curve_key) for curve_key in ("k" * 40, None))
    for client in (remote, local):
        for number in range(70):
            queries.take(client, wire.Query(id=number, kind="tokenize", body={"text": "a"}))
    refused = [event for event in remote.events if isinstance(event, wire.Reply)]
    assert [(reply.id, reply.status) for reply in refused] == [(number, 429) for number in range(64, 70)]
    assert not local.events


def test_addresses_and_keys_that_can_not_be_served() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    secret = zmq.curve_keypair()[1].decode()
    try:
        zap = ZapHandler(context, lambda key: False)
        port = free_port()
        first = RemoteSocket(context, f"tcp://127.0.0.1:{port}", secret)
        with pytest.raises(AddressError, match="a free port"):
            RemoteSocket(context, f"tcp://127.0.0.1:{port}", secret)
        with pytest.raises(AddressError, match="an IP address of this machine"):
            RemoteSocket(context, "tcp://nosuchhost.example:5555", secret)
        with pytest.raises(AddressError, match="radixserve keygen"):
            RemoteSocket(context, f"tcp://127.0.0.1:{free_port()}", "too short")
        first.close()
        zap.close()
    finally:
        context.destroy(linger=0)


def test_requests_of_other_mechanisms_are_refused() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        zap = ZapHandler(context, lambda key: True)
        asking = context.socket(zmq.DEALER)
        asking.connect("inproc://zeromq.zap.01")
        curve = [b"1.0", b"7", b"radixserve", b"10.0.0.1", b"", b"CURVE", b"k" * 32]
        wrong = [
            [b"1.0", b"7", b"radixserve", b"10.0.0.1", b"", b"PLAIN", b"user", b"password"],
            [b"1.0", b"7", b"radixserve", b"10.0.0.1", b"", b"NULL"],
            [*curve[:-1], b"short"],
            [b"2.0", *curve[1:]],
            [b"1.0"],
            [],
        ]
        for request in wrong:
            asking.send_multipart([b"", *request])
            zap.socket.poll(1000)
            zap.answer()
            assert asking.recv_multipart()[3] == b"400"
        asking.send_multipart([b"no envelope"])
        asking.send_multipart([b"", *curve])
        zap.socket.poll(1000)
        zap.answer()
        assert asking.recv_multipart()[1:4] == [b"1.0", b"7", b"200"]
        zap.close()
    finally:
        context.destroy(linger=0)
