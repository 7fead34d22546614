"""What waits for clients that don't read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_tokenizer import backlog
from radixserve_tokenizer.backlog import Backlogs
from radixserve_tokenizer.peers import CURVE_KEY_CHARS, local_peer, remote_peer

if TYPE_CHECKING:
    import pytest

ALICE, BOB = "a" * CURVE_KEY_CHARS, "b" * CURVE_KEY_CHARS
PEERS = [local_peer(b"1"), local_peer(b"2"), *(remote_peer(key, bytes([n])) for key in (ALICE, BOB) for n in range(3))]


def test_a_connection_has_its_bound_and_so_have_all_with_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MAX_BYTES", 100)
    monkeypatch.setattr(backlog, "MAX_BYTES_OF_KEY", 150)
    it = Backlogs()
    first, second, other = remote_peer(ALICE, b"1"), remote_peer(ALICE, b"2"), remote_peer(BOB, b"1")
    assert it.add(first, b"x" * 90) == ""
    assert "it does not read" in it.add(first, b"x" * 20)
    assert it.add(second, b"x" * 60) == ""
    assert "nor do others with its key" in it.add(second, b"x" * 20)
    assert it.add(other, b"x" * 100) == it.add(local_peer(b"1"), b"x" * 100) == it.add(local_peer(b"2"), b"x" * 100) == ""
    it.forget(first)
    assert it.add(second, b"x" * 20) == "", "what is given up makes room"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PEERS), st.sampled_from(["add", "sent", "forget"]), st.integers(0, 5))))
def test_frames_leave_in_order_and_what_is_counted_is_what_is_there(steps: list[tuple[bytes, str, int]]) -> None:
    it, there = Backlogs(), {peer: list[bytes]() for peer in PEERS}
    for number, (peer, what, size) in enumerate(steps):
        if what == "add":
            frame = bytes([number % 256]) * size
            assert it.add(peer, frame) == ""
            there[peer].append(frame)
        elif what == "forget":
            it.forget(peer)
            there[peer].clear()
        elif there[peer]:
            assert it.first(peer) == there[peer].pop(0)
            it.sent(peer)
        assert it.clients == {one for one, frames in there.items() if frames}
        for key in (ALICE, BOB):
            own = sum(len(frame) for one, frames in there.items() for frame in frames if key.encode() in one)
            assert it._of_key.get(key, 0) == own
