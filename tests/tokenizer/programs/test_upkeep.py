"""What a tenant's open programs may make this process remember."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import upkeep
from tests.tokenizer.programs.harness import World, append, gen, says
from tests.tokenizer.tenants.people import key, tenant, world


def fork(op: int, program: int, count: int = 10) -> wire.Fork:
    return wire.Fork(program=program, op=op, branch=0, first=1 + count * op, count=count)


def kept(it: World, name: str = "") -> int:
    return next(one for one in it.core.services.tenants.all if one.name == name).num_kept_bytes


def test_forks_and_empty_ops_of_all_of_a_tenants_programs_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MAX_BYTES", 70_000)
    it = world(tenant("alice"), tenant("bob"))
    for program in (1, 2, 3):
        it.send(wire.Open(program=program, api_key=key("alice")), fork(0, program))
    failed = it.one(wire.Failed)
    assert (failed.program, failed.code, failed.status) == (3, "too_many_ops", 429)
    assert "close programs, or drop branches" in failed.message
    it.send(wire.Open(program=4, api_key=key("bob")), fork(0, 4))
    assert len(it.of(wire.Failed)) == 1, "others have their own room"
    it.send(append(1, "x" * 50_000, program=1))
    assert len(it.of(wire.Failed)) == 2
    it.send(wire.Drop(program=1, branches=tuple(range(1, 11))), append(2, "x" * 10_000, program=1))
    assert len(it.of(wire.Failed)) == 2, "dropped branches make room"
    it.send(wire.Close(program=1), wire.Close(program=2))
    it.send(fork(1, 3), fork(2, 3))
    assert len(it.of(wire.Failed)) == 2, "what ended is forgotten"
    for program in range(5, 30):
        it.send(wire.Open(program=program, api_key=key("alice")))
    refused = it.of(wire.Refused)
    assert 0 < len(refused) < 25, "idle programs take room too"
    assert {(one.status, one.code) for one in refused} == {(429, "too_many_ops")}


LONG = "x" * 3000
HELD: dict[str, list[wire.Op]] = {
    "text": [append(10, LONG)],
    "text beyond Latin": [append(10, "\U0001f600" * 800)],
    "ids": [append(10, wire.TokenIds(ids=(5,) * 80))],
    "fields": [append(10, "a", role="user", name=["x"] * 300)],
    "tools": [wire.Tools(program=1, op=10, branch=0, tools=(wire.ToolSpec(name="f", description=LONG),))],
    "schemas of tools": [
        wire.Tools(program=1, op=10, branch=0, tools=(wire.ToolSpec(name="f", parameters=json.dumps({"title": LONG})),))
    ],
    "a constraint": [gen(10, constraint=wire.Constraint(kind="regex", source=LONG))],
    "stop strings": [gen(10, stop=(LONG,))],
    "biases": [gen(10, logit_bias=dict.fromkeys(range(40), 1.0))],
    "options": [wire.Select(program=1, op=10, branch=0, var=10, options=(LONG, "b"))],
    "branches": [fork(10, 1, count=2)],
    "ops": [append(number, "a") for number in range(10, 20)],
}


@pytest.mark.parametrize("what", HELD)
def test_whatever_a_program_holds_is_counted_before_it_is_held(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = World().send(wire.Open(program=1), append(0, "a", role="user"))
    monkeypatch.setattr(upkeep, "MAX_BYTES", kept(it) + 3000)
    it.runtime.hold = True
    it.send(*HELD[what])
    failed = it.of(wire.Failed)
    assert failed
    assert {(one.code, one.status, one.retryable) for one in failed} == {("too_many_ops", 429, True)}


def test_a_value_that_is_put_in_again_and_again_is_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    it = World()
    it.runtime.scripts.append(says("ABC" * 1000))
    it.send(wire.Open(program=1), append(0, "a"), gen(1))
    monkeypatch.setattr(upkeep, "MAX_BYTES", kept(it) + 20_000)
    it.send(*(append(number, wire.VarRef(var=1)) for number in range(2, 12)), gen(12))
    failed = it.of(wire.Failed)[0]
    assert failed.code == "too_many_ops"
    assert 4 < failed.op < 8, "a message of some bytes makes three kilobytes"


def test_long_conversations_keep_more_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """To come back to before each of them. Messages that wait for the next are one conversation."""
    it = World().send(wire.Open(program=1))
    sizes: list[int] = []
    for number in range(0, 120, 2):
        before = kept(it)
        it.send(append(number, f"{number:03}", role="user"), gen(number + 1))
        sizes.append(kept(it) - before)
    assert sizes[-1] > sizes[0] + 59 * 100
    before = kept(it)
    it.send(*(append(number, f"{number:03}", role="user") for number in range(120, 180)))
    assert kept(it) - before < 60 * 1000
    it.send(wire.Rollback(program=1, op=180, branch=0, to_op=0))
    variables = 60 * (upkeep._VARIABLE_BYTES + upkeep.getsizeof("ok"))
    assert kept(it) == upkeep.PROGRAM_BYTES + upkeep.BRANCH_BYTES + upkeep.getsizeof("") + variables, (
        "what is taken back is forgotten"
    )


def test_deep_branches_keep_more_than_shallow_ones() -> None:
    """Each knows its way from the root: a chain of forks would take memory by the square of its length."""
    it = World().send(wire.Open(program=1))
    sizes: list[int] = []
    for number in range(200):
        before = kept(it)
        it.send(wire.Fork(program=1, op=number, branch=number, first=number + 1, count=1))
        sizes.append(kept(it) - before)
    assert sizes[-1] >= sizes[0] + 199 * 8
    it.send(wire.Drop(program=1, branches=tuple(range(1, 201))))
    assert kept(it) < 200 * 1024


def test_who_tries_again_and_again_does_not_run_out_of_room() -> None:
    it = World().send(wire.Open(program=1), append(0, "hello"))
    levels: list[int] = []
    for number in range(1, 400, 2):
        it.send(gen(number), wire.Rollback(program=1, op=number + 1, branch=0, to_op=number))
        levels.append(kept(it))
    assert levels[-1] - levels[0] < 400 * len(levels), "a variable each, which can still be referred to"


STEP = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["a", "hello" * 30, ""]), st.sampled_from(["", "user"])),
    st.tuples(st.just("gen"), st.sampled_from([None, "bad", "a+"]), st.sampled_from([0, 1])),
    st.tuples(st.just("select"), st.just(0), st.just(0)),
    st.tuples(st.just("fork"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("rollback"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("var"), st.integers(0, 30), st.just(0)),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(STEP, st.integers(0, 6), st.booleans()), max_size=25))
def test_all_that_was_counted_is_given_back(steps: list[tuple[tuple[str, Any, Any], int, bool]]) -> None:
    it = World().send(wire.Open(program=1), wire.Open(program=2))
    branches = 1
    for op, ((kind, value, more), where, holds) in enumerate(steps):
        branch = where % branches
        it.runtime.hold = holds
        match kind:
            case "append":
                it.send(append(op, value, branch=branch, role=more))
            case "gen":
                constraint = None if value is None else wire.Constraint(kind="regex", source=value)
                it.send(gen(op, branch=branch, stream=bool(more), constraint=constraint))
            case "select":
                it.send(wire.Select(program=1, op=op, branch=branch, var=op, options=("a", "b")))
            case "fork":
                it.send(wire.Fork(program=1, op=op, branch=branch, first=branches, count=value))
                branches += value
            case "rollback":
                it.send(wire.Rollback(program=1, op=op, branch=branch, to_op=value))
            case "drop":
                it.send(wire.Drop(program=1, branches=(value % branches,)))
            case "cancel":
                it.send(wire.Cancel(program=1, branches=(value % branches,)))
            case _:
                it.send(append(op, wire.VarRef(var=value), branch=branch))
        program = it.core._clients[b"c"].programs[1]
        own = sum(branch.num_kept_bytes + upkeep.BRANCH_BYTES for branch in program.branches.values())
        assert 0 <= own <= program.num_kept_bytes <= kept(it)
        assert program.num_pending_ops >= 0
    it.send(wire.Close(program=1), wire.Close(program=2))
    assert kept(it) == 0


def test_programs_that_are_not_admitted_yet_take_a_place() -> None:
    """Where tokens are limited programs wait for the end of their frame: so many may be there, and no more."""
    it = world(tenant("alice", tokens_per_minute=1_000_000, max_programs=10))
    for program in range(1, 31):
        it.core.handle(b"c", wire.Open(program=program, api_key=key("alice")))
    assert len(it.core._clients[b"c"].programs) == 10
    it.core.frame_ended(b"c")
    it.settle()
    assert len(it.of(wire.Admitted)) == 10
    assert {one.code for one in it.of(wire.Refused)} == {"too_many_programs"}
    it.send(wire.Close(program=1), wire.Open(program=31, api_key=key("alice")))
    assert len(it.of(wire.Admitted)) == 11
    assert it.core.services.admission.num_undecided == 0


def test_a_lease_of_a_branch_that_holds_nothing_any_more_ends_the_one_before() -> None:
    it = World().send(wire.Open(program=1), append(0, "AB"), append(1, role="user"))
    it.send(wire.Lease(program=1, op=2, branch=0, ttl_s=60))
    assert it.runtime.leases
    it.send(wire.Rollback(program=1, op=3, branch=0, to_op=0), wire.Lease(program=1, op=4, branch=0, ttl_s=60))
    assert not it.runtime.leases, "it would be kept for an hour, and charged to nobody"
    assert len(it.sent(rt.Lease)) == 1
