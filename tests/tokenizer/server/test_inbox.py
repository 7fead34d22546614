"""Whose message is handled next."""

from __future__ import annotations

from itertools import islice

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.inbox import Inbox
from radixserve_tokenizer.peers import CURVE_KEY_CHARS, local_peer, remote_peer


def queries(client: bytes, frame: bytes) -> list[wire.FromClient]:
    """A frame of this many bytes is as many messages."""
    return [wire.Query(id=index, kind="health") for index in range(len(frame))]


def test_each_client_in_turn_and_each_in_its_order() -> None:
    inbox = Inbox(queries)
    inbox.put(b"flood", b"x" * 100_000)
    inbox.put(b"flood", b"x" * 100_000)
    inbox.put(b"other", b"xx")
    first = list(islice(inbox.take(), 200))
    assert [message.id for client, message in first if client == b"other"] == [0, 1]  # type: ignore[union-attr]
    inbox.put(b"late", b"x")
    assert b"late" in {client for client, _ in islice(inbox.take(), 200)}
    rest = [message.id for client, message in inbox.take() if client == b"flood"]  # type: ignore[union-attr]
    taken = 200_000 - len(rest)
    assert [*range(100_000), *range(100_000)][taken:] == rest
    assert not inbox


def test_frames_that_hold_nothing_leave_nothing() -> None:
    inbox = Inbox(queries)
    for _ in range(3):
        inbox.put(b"a", b"")
    assert list(inbox.take()) == []
    assert not inbox


def test_full_until_taken_or_forgotten() -> None:
    inbox = Inbox(lambda client, frame: [])
    for client in (b"a", b"b", b"a"):
        inbox.put(client, bytes(30 << 20))
    assert inbox.is_full(remote=False)
    assert not inbox.is_full(remote=True)
    inbox.forget(b"a")
    assert not inbox.is_full(remote=False)
    assert inbox
    assert list(inbox.take()) == []
    assert not inbox


def test_who_floods_over_tcp_fills_the_room_of_remote_clients_alone_and_is_known() -> None:
    inbox = Inbox(lambda client, frame: [])
    alice, bob = "a" * CURVE_KEY_CHARS, "b" * CURVE_KEY_CHARS
    for number in range(5):
        inbox.put(remote_peer(alice, bytes([number])), bytes((8 + number) << 20))
    inbox.put(remote_peer(bob, b"x"), bytes(16 << 20))
    inbox.put(local_peer(b"http"), bytes(16 << 20))
    assert inbox.is_full(remote=True)
    assert not inbox.is_full(remote=False)
    assert inbox.hog() == remote_peer(alice, bytes([4])), "her largest connection"
    inbox.forget(remote_peer(alice, bytes([4])))
    assert not inbox.is_full(remote=True)
    inbox.forget(remote_peer(alice, bytes([3])))
    assert inbox.hog() is None, "no one has more than half"
