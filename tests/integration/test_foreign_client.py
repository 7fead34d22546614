"""A client that knows docs/protocol.md and nothing else, against a live engine."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import radixserve as rs
from benchmarks.load import settled_stats
from tests.integration import foreign_client
from tests.integration.foreign_client import ForeignClient, Ops

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[rs.Engine]:
    with rs.Engine(str(tiny_model), dtype="float32", threads=1, kv_tokens=8192, log_level="warning") as running:
        yield running


@pytest.fixture
def client(engine: rs.Engine) -> Iterator[ForeignClient]:
    with ForeignClient(engine.url) as connected:
        connected.hello()
        yield connected


def test_it_imports_nothing_of_ours() -> None:
    tree = ast.parse(Path(foreign_client.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "time", "typing", "msgpack", "zmq"}


def test_the_greeting(engine: rs.Engine) -> None:
    with ForeignClient(engine.url) as client:
        welcome = client.hello()
    assert welcome["version"] == 1
    assert welcome["heartbeat_s"] < welcome["client_timeout_s"]
    assert welcome["model"]["has_chat_template"]
    assert welcome["epoch"]


def test_a_conversation(client: ForeignClient, engine: rs.Engine) -> None:
    ops = Ops(1)
    client.send(ops.open(), ops.say("You are a test.", role="system"), ops.say("Hello?"), ops.gen())
    client.wait("admitted", program=1)
    first = client.wait("done", program=1, op=2)
    assert first["finish_reason"] == "length"
    assert len(first["token_ids"]) == first["usage"]["output_tokens"] == 8
    client.send(ops.say("And now?"), ops.gen())
    second = client.wait("done", program=1, op=4)
    assert second["usage"]["cached_tokens"] > first["usage"]["prompt_tokens"]
    assert second["num_branch_tokens"] >= second["usage"]["prompt_tokens"] + 8
    client.send(ops.close())
    assert client.quiet(1) == []

    @rs.function
    def same(s: rs.State) -> list[str]:
        s += (rs.system("You are a test."), rs.user("Hello?"))
        one = s.gen(max_tokens=8, temperature=0, ignore_eos=True)
        s += rs.user("And now?")
        return [one.value, s.gen(max_tokens=8, temperature=0, ignore_eos=True).value]

    assert same.run(engine=engine).value == [first["value"], second["value"]]


def test_a_fork_and_a_cancel(client: ForeignClient, engine: rs.Engine) -> None:
    ops = Ops(2)
    client.send(
        ops.open(),
        ops.say("Pick one."),
        ops.op("fork", first=1, count=3),
        ops.gen(branch=1),
        ops.gen(branch=2, max_tokens=3000),
        ops.gen(branch=3, max_tokens=3000),
        # The root goes on from a value that is not there yet.
        ops.op("append", parts=[{"t": "text", "text": "It was "}, {"t": "var", "var": 0}], role="user"),
        ops.gen(),
    )
    winner = client.wait("done", program=2, op=2)
    client.send({"t": "cancel", "program": 2, "branches": [2]}, {"t": "drop", "program": 2, "branches": [3]})
    assert client.wait("failed", program=2, op=3)["code"] == "cancelled"
    assert client.wait("failed", program=2, op=4)["code"] == "cancelled"
    assert client.wait("done", program=2, op=6)["usage"]["prompt_tokens"] > winner["usage"]["prompt_tokens"]
    client.send(ops.gen(branch=2), ops.gen(branch=3))
    assert client.wait("failed", program=2, op=7)["code"] == "skipped"
    assert client.wait("failed", program=2, op=8)["code"] == "unknown_branch"
    client.send(ops.close())
    stats = settled_stats(engine.client)
    assert stats["num_running"] == stats["pages_locked"] == 0


def test_deltas_come_for_credits(client: ForeignClient) -> None:
    ops = Ops(3)
    client.send(ops.open(credits=2), ops.say("Stream."), ops.gen(max_tokens=200, stream=True))
    done = client.wait("done", program=3)
    deltas = [event for event in client.inbox if event["t"] == "delta"]
    assert len(deltas) == 2
    said = "".join(delta["text"] for delta in deltas)
    assert done["value"].startswith(said)
    assert len(said) < len(done["value"])
    client.inbox.clear()
    client.send({"t": "credit", "program": 3, "amount": 1000}, ops.gen(max_tokens=50, stream=True))
    done = client.wait("done", program=3)
    deltas = [event for event in client.inbox if event["t"] == "delta"]
    assert "".join(delta["text"] for delta in deltas) == done["value"]
    assert [token for delta in deltas for token in delta.get("token_ids", [])] == done["token_ids"]
    client.send(ops.close())


def test_choices(client: ForeignClient) -> None:
    ops = Ops(4)
    options = [" yes", " no", " perhaps"]
    client.send(
        ops.open(),
        ops.say("Yes or no?"),
        ops.value("score", options=options, method="sum"),
        ops.value("select", options=options, method="sum"),
        ops.value("score", options=options),
    )
    score, select, after = (client.wait("done", program=4, op=op) for op in (1, 2, 3))
    assert [one["option"] for one in score["scores"]] == options
    assert all(one["score"] == one["logprob_sum"] < 0 for one in score["scores"])
    best = max(score["scores"], key=lambda one: one["score"])["option"]
    assert score["value"] == select["value"] == best
    assert after["scores"] != score["scores"]  # select appended, score did not
    assert [one["score"] for one in select["scores"]] == pytest.approx([one["score"] for one in score["scores"]], abs=1e-4)


def test_a_rollback(client: ForeignClient) -> None:
    ops = Ops(5)
    client.send(ops.open(), ops.say("Again?"), ops.gen())
    first = client.wait("done", program=5, op=1)
    client.send(ops.op("rollback", to_op=1), ops.gen())
    again = client.wait("done", program=5, op=3)
    assert again["token_ids"] == first["token_ids"]
    assert again["num_branch_tokens"] == first["num_branch_tokens"]
    client.send(ops.op("rollback", to_op=77))
    assert client.wait("failed", program=5, op=4)["code"] == "unknown_op"


def test_a_failure_poisons_the_branch_and_a_rollback_heals_it(client: ForeignClient) -> None:
    ops = Ops(6)
    bad = {"temperature": 9.0}
    client.send(ops.open(), ops.say("Fail."), ops.value("gen", sampling=bad), ops.gen(), ops.op("rollback", to_op=1), ops.gen())
    failed = client.wait("failed", program=6, op=1)
    assert failed["code"] == "invalid_value"
    assert failed["param"] == "temperature"
    skipped = client.wait("failed", program=6, op=2)
    assert skipped["code"] == "skipped"
    assert skipped["message"].startswith("skipped: op 1 failed")
    assert client.wait("done", program=6, op=4)["token_ids"]


def test_a_lease(client: ForeignClient, engine: rs.Engine) -> None:
    ops = Ops(7)
    client.send(ops.open(), ops.say("Keep this warm."), ops.gen(), ops.op("lease", ttl_s=30.0))
    client.wait("done", program=7)
    assert client.quiet(7) == [] or client.quiet(7)[0]["t"] == "admitted"
    client.send({"t": "query", "id": 1, "kind": "stats"})
    assert "pages_total" in client.wait("reply", id=1)["body"]
    client.send(ops.op("release"), ops.op("lease", ttl_s=-1.0))
    assert client.wait("failed", program=7, op=4)["param"] == "ttl_s"
    client.send(ops.close())
    settled_stats(engine.client)


def test_an_unknown_op_is_named_and_its_frame_rejected(client: ForeignClient) -> None:
    ops = Ops(8)
    client.send(ops.open(), ops.say("One."))
    sing = {"t": "sing", "program": 8, "op": 1, "branch": 0}
    client.send(ops.say("Two.") | {"op": 2}, sing)
    failed = client.wait("failed", program=-1, op=-1)
    assert failed["code"] == "malformed"
    assert "'sing'" in failed["message"]
    assert "$[1].t" in failed["message"]
    # Nothing of that frame was carried out, and the connection goes on.
    client.send(ops.gen() | {"op": 2})
    alone = client.wait("done", program=8, op=2)
    other = Ops(9)
    client.send(other.open(), other.say("One."), other.gen())
    assert client.wait("done", program=9)["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


def test_other_frames_that_are_none(client: ForeignClient) -> None:
    for frames in ((b"\xc1",), (b"",), (b"\x90", b"\x90"), (b"\x81\xa1t\xa4ping",), (b"\x91" * 4000,)):
        client.send_raw(*frames)
        assert client.wait("failed", program=-1)["code"] == "malformed"
    client.send({"t": "ping", "new_in_version_1": {"x": [1, 2]}})
    client.wait("pong")


def test_an_op_of_no_program_and_numbers_that_go_back(client: ForeignClient) -> None:
    ops = Ops(10)
    client.send(ops.gen())
    assert client.wait("failed", program=10, op=0)["code"] == "unknown_program"
    client.send(ops.open(), ops.say("x") | {"op": 5}, ops.say("y") | {"op": 5})
    assert client.wait("failed", program=10, op=5)["code"] == "op_order"
    client.send(ops.open())
    assert client.wait("refused", program=10)["code"] == "duplicate_program"


def test_another_version_is_turned_away(engine: rs.Engine) -> None:
    with ForeignClient(engine.url) as client:
        client.send({"t": "hello", "version": 99})
        assert "version 1, not 99" in client.wait("goodbye")["message"]
        ops = Ops(1)
        client.send(ops.open())
        assert "Hello" in client.wait("goodbye")["message"]


def test_text_and_tokens(client: ForeignClient) -> None:
    client.send({"t": "query", "id": 1, "kind": "tokenize", "body": {"text": "Hello"}})
    ids = client.wait("reply", id=1)["body"]["ids"]
    client.send({"t": "query", "id": 2, "kind": "detokenize", "body": {"ids": ids}})
    assert client.wait("reply", id=2)["body"]["text"] == "Hello"
    client.send({"t": "query", "id": 3, "kind": "detokenize", "body": {"ids": [10**9]}})
    assert client.wait("reply", id=3)["status"] == 400


def test_a_detached_program_is_taken_up(engine: rs.Engine) -> None:
    key = "a secret of the foreign client"
    ops = Ops(1)
    with ForeignClient(engine.url) as client:
        client.hello()
        client.send(
            ops.open(detached_ttl_s=60.0, resume_key=key), ops.say("Stay."), ops.gen(), ops.gen(max_tokens=100, stream=True)
        )
        first = client.wait("done", program=1, op=1)
    with ForeignClient(engine.url) as client:
        client.hello()
        client.send({"t": "attach", "program": 7, "resume_key": "not this one, but long"})
        assert client.wait("refused", program=7)["status"] == 404
        client.send({"t": "attach", "program": 7, "resume_key": key, "from_op": 0})
        attached = client.wait("attached", program=7)
        assert (attached["next_op"], attached["next_var"], attached["next_branch"]) == (3, 2, 1)
        again = client.wait("done", program=7, op=1)
        assert again["value"] == first["value"]
        second = client.wait("done", program=7, op=2)
        ops.program = 7
        client.send(ops.say("Go on."), ops.gen())
        assert client.wait("done", program=7, op=4)["usage"]["prompt_tokens"] > second["usage"]["prompt_tokens"]
        client.send(ops.close())
        client.send({"t": "attach", "program": 8, "resume_key": key})
        assert client.wait("refused", program=8)["status"] == 404
