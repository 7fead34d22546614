"""The server over real sockets."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer import wire as wire_module
from radixserve_tokenizer.server import frames
from radixserve_tokenizer.wire import AddressError, ClientSocket
from tests.tokenizer.programs.harness import append, encode, gen, says
from tests.tokenizer.server.rig import RawClient, Rig, eventually, rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_program_over_the_wire() -> None:
    with rig() as it:
        client = it.client()
        it.runtime.runtime.scripts.append(says("AB", "C"))
        client.send(wire.Open(program=1, seed=3), append(0, "hi", role="user"), gen(1, 0, stream=True))
        done = client.wait(wire.Done)
        assert done.value == "ABC"
        assert "".join(event.text for event in client.seen if isinstance(event, wire.Delta)) == "ABC"
        assert isinstance(client.seen[1], wire.Admitted)
        client.send(wire.Ping(), wire.Query(id=1, kind="health"))
        assert client.wait(wire.Reply).body["status"] == "ok"
        assert client.wait(wire.Pong)
    assert client.seen


def test_the_address_is_for_this_user_alone(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = ClientSocket(context, f"ipc://{tmp_path / 'new' / 's'}")
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "new" / "s").stat().st_mode) & 0o077 == 0
        socket.close()
        open_folder = tmp_path / "open"
        open_folder.mkdir()
        open_folder.chmod(0o755)
        for address in (f"ipc://{open_folder / 's'}", "tcp://127.0.0.1:5555"):
            with pytest.raises(AddressError, match=r"choose a folder of mode 0700|give an ipc"):
                ClientSocket(context, address)
    finally:
        context.destroy(linger=0)


def test_stop_says_goodbye() -> None:
    with rig() as it:
        client = it.client()
        it.server.stop()
        assert "shutting down" in client.wait(wire.Goodbye).message


def test_a_restarted_runtime_is_found_and_work_goes_on() -> None:
    with rig() as it:
        client = it.client()
        it.runtime.runtime.hold = True
        client.send(wire.Open(program=1, seed=1), append(0, "hello"), gen(1))
        eventually(lambda: len(it.runtime.runtime.requests) == 1)
        first = next(iter(it.runtime.runtime.requests.values()))
        it.runtime.runtime.hold = False
        it.restart_runtime("r2")
        assert client.wait(wire.Done).value == "ok"
        assert isinstance(it.runtime.runtime.received[0], rt.Hello), "nothing that was meant for the old one reached the new one"
        again = next(m for m in it.runtime.runtime.received if isinstance(m, rt.Generate))
        assert isinstance(first, rt.Generate)
        assert again.sampling == first.sampling
        client.send(wire.Query(id=1, kind="health"))
        assert client.wait(wire.Reply).body["epoch"] == "r2"


def test_a_streamed_generation_fails_clearly_when_the_runtime_dies() -> None:
    with rig() as it:
        client = it.client()
        it.runtime.runtime.hold = True
        client.send(wire.Open(program=1), append(0, "hello"), gen(1, stream=True))
        eventually(lambda: len(it.runtime.runtime.requests) == 1)
        request_id = next(iter(it.runtime.runtime.requests))
        it.runtime.runtime.out = [rt.Tokens(request_id=request_id, token_ids=encode("AB"))]
        assert client.wait(wire.Delta).text == "AB"
        it.runtime.stop()
        failed = client.wait(wire.Failed)
        assert (failed.code, failed.status, failed.partial) == ("runtime_restarted", 503, "AB")
        it.restart_runtime("r2")


def test_a_client_that_vanishes_is_cleaned_up_and_others_go_on() -> None:
    with rig(client_timeout_s=0.5) as it:
        it.runtime.runtime.hold = True
        gone, stays = it.client(), it.client()
        gone.send(wire.Open(program=1), append(0, "hello"), gen(1))
        eventually(lambda: len(it.runtime.runtime.requests) == 1)
        gone.close()

        def cancelled() -> bool:
            stays.send(wire.Ping())
            return not it.runtime.runtime.requests

        eventually(cancelled)
        it.runtime.runtime.hold = False
        stays.send(wire.Open(program=1), append(0, "hello"), gen(1))
        assert stays.wait(wire.Done)


def test_a_client_that_does_not_read_holds_nobody_up_and_loses_nothing() -> None:
    with rig(client_timeout_s=60.0) as it:
        slow, quick = it.client(hwm=1), it.client()
        count = 4000
        for number in range(count):
            slow.send(wire.Query(id=number, kind="tokenize", body={"text": "hello " * 100}))
        quick.send(wire.Open(program=1), append(0, "hello"), gen(1))
        assert quick.wait(wire.Done)
        slow.wait(wire.Reply, id=count - 1)
        assert [event.id for event in slow.seen if isinstance(event, wire.Reply)] == list(range(count))


def _bomb(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


BAD_FRAMES = [
    b"",
    b"\xc1",
    b"not msgpack at all",
    _bomb(10),
    _bomb(100_000),
    msgspec.msgpack.encode({"t": "hello"}),
    msgspec.msgpack.encode([{"t": "no such op"}]),
    msgspec.msgpack.encode([{"t": "gen", "program": "x"}]),
    msgspec.msgpack.encode([{"t": "hello", "version": 1}])[:-1],
    b"\x91\x82\xa1t\xa4ping\xa1x" + _bomb(5_000),
    b"\x91\x83\xa1t\xa5query\xa2id\x01\xa4body\x81\xa1a" + _bomb(50_000),
    b"\xdd\xff\xff\xff\xff",
    b"\x91\x82\xa1t\xa6append\xa4role\xa2\xff\xfe",
]


@pytest.fixture(scope="module")
def shared_rig() -> Iterator[Rig]:
    with rig(client_timeout_s=120.0) as it:
        yield it


@pytest.mark.parametrize("number", range(len(BAD_FRAMES)))
def test_malformed_frames_get_an_error_reply(shared_rig: Rig, number: int) -> None:
    client = shared_rig.client()
    client.socket.send(BAD_FRAMES[number])
    failed = client.wait(wire.Failed)
    assert (failed.program, failed.op, failed.code, failed.status) == (-1, -1, "malformed", 400)
    client.send(wire.Open(program=1), append(0, "hello"), gen(1))
    assert client.wait(wire.Done)


def test_more_parts_than_one_are_malformed(shared_rig: Rig) -> None:
    client = shared_rig.client()
    client.socket.send_multipart([wire.encode([wire.Ping()]), b"and more"])
    assert client.wait(wire.Failed).code == "malformed"


def test_a_message_of_many_parts_is_let_go_part_by_part_and_others_are_heard_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "_MAX_PARTS_A_TURN", 10)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    tmp_path.chmod(0o700)
    door = ClientSocket(context, f"ipc://{tmp_path / 's'}")
    sender = context.socket(zmq.DEALER)
    sender.connect(f"ipc://{tmp_path / 's'}")
    try:
        sender.send_multipart([b"x" * 100] * 35)
        sender.send(b"after")
        turns: list[list[bytes]] = []
        while [b"after"] not in turns:
            assert door.socket.poll(5000), turns
            turns.append([frame for _, frame in door.receive()])
        assert turns == [[b""], [], [], [b"after"]] or turns == [[b""], [], [], [], [b"after"]], turns
    finally:
        door.close()
        context.destroy(linger=0)


def test_who_sends_many_parts_is_told_so_once_and_others_are_served(shared_rig: Rig) -> None:
    client, other = shared_rig.client(), shared_rig.client()
    client.socket.send_multipart([wire.encode([wire.Ping()])] * 50_000)
    other.send(wire.Open(program=1), append(0, "hello"), gen(1))
    assert other.wait(wire.Done)
    client.send(wire.Ping())
    client.wait(wire.Pong)
    assert [type(event) for event in client.seen] == [wire.Welcome, wire.Failed, wire.Pong]


def test_an_oversize_frame_costs_its_sender_the_connection_alone(shared_rig: Rig) -> None:
    client, other = shared_rig.client(), shared_rig.client()
    client.socket.send(b"\0" * (wire.MAX_FRAME_BYTES + 1))
    other.send(wire.Open(program=1), append(0, "hello"), gen(1))
    assert other.wait(wire.Done)


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 1 << 40), st.floats(), st.text(max_size=4), st.binary(max_size=4))
_TAGS = [member.__struct_config__.tag for member in wire.FromClient.__args__]  # type: ignore[attr-defined]
_FIELDS = ["program", "op", "branch", "branches", "var", "parts", "role", "fields", "sampling", "options", "method", "first", "count",
           "to_op", "ttl_s", "amount", "id", "kind", "body", "version", "constraint", "credits", "seed", "stream"]  # fmt: skip
_VALUES = st.one_of(
    _LEAVES,
    st.lists(_LEAVES, max_size=3),
    st.just([{"t": "text", "text": "a"}]),
    st.just([{"t": "var", "var": 0}]),
    st.just({"max_tokens": 3}),
    st.dictionaries(st.text(max_size=3), _LEAVES, max_size=2),
)
_MESSAGES = st.builds(
    lambda tag, rest: {"t": tag} | rest, st.sampled_from(_TAGS), st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=8)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(st.one_of(st.binary(max_size=60), st.lists(_MESSAGES, max_size=4).map(msgspec.msgpack.encode)))
def test_no_frame_kills_the_process(shared_rig: Rig, frame: bytes) -> None:
    fuzzer: RawClient | None = getattr(shared_rig, "fuzzer", None)
    if fuzzer is None:
        fuzzer = shared_rig.client()
        shared_rig.fuzzer = fuzzer  # type: ignore[attr-defined]
    fuzzer.socket.send(frame)
    fuzzer.send(wire.Ping())
    fuzzer.seen.clear()
    assert fuzzer.wait(wire.Pong)


def test_the_pipe_of_the_compiler_wakes_the_loop() -> None:
    with rig() as it:
        os.write(it._pipe[1], b"x")  # pyright: ignore[reportPrivateUsage]
        client = it.client()
        constraint = wire.Constraint(kind="regex", source="a+")
        client.send(wire.Open(program=1), append(0, "hello"), gen(1, constraint=constraint))
        assert client.wait(wire.Done)


def test_many_large_events_go_out_in_several_frames() -> None:
    events: list[wire.Event] = [
        wire.Done(program=1, op=number, var=number, value="x" * (wire.MAX_FRAME_BYTES // 3)) for number in range(5)
    ]
    sent = list(frames(events))
    assert [event for frame in sent for event in wire.decode_events(frame)] == events
    assert max(map(len, sent)) <= wire.MAX_FRAME_BYTES
    assert len(list(frames(events[:1]))) == 1
