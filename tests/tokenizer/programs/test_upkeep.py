"""What a tenant's open programs may make this process remember."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import upkeep
from tests.tokenizer.programs.harness import World, append
from tests.tokenizer.tenants.people import key, tenant, world

if TYPE_CHECKING:
    import pytest


def fork(op: int, program: int, count: int = 10) -> wire.Fork:
    return wire.Fork(program=program, op=op, branch=0, first=1 + count * op, count=count)


def test_forks_and_empty_ops_of_all_of_a_tenants_programs_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "MAX_UNITS", 100)
    it = world(tenant("alice"), tenant("bob"))
    for program in (1, 2, 3):
        it.send(wire.Open(program=program, api_key=key("alice")), fork(0, program))
    failed = it.one(wire.Failed)
    assert (failed.program, failed.code, failed.status) == (3, "too_many_ops", 429)
    it.send(wire.Open(program=4, api_key=key("bob")), fork(0, 4))
    assert len(it.of(wire.Failed)) == 1, "others have their own room"
    it.send(*(append(op, program=1) for op in range(1, 19)))
    assert len(it.of(wire.Failed)) == 1
    it.send(append(30, program=1))
    assert len(it.of(wire.Failed)) == 2
    it.send(append(31, "x" * 5000, program=4))
    it.send(wire.Drop(program=1, branches=tuple(range(1, 11))), append(32, program=1), append(33, "x" * 10_000, program=1))
    assert len(it.of(wire.Failed)) == 2, "dropped branches make room, also for text"
    it.send(wire.Close(program=1), wire.Close(program=2))
    it.send(fork(1, 3), fork(2, 3))
    assert len(it.of(wire.Failed)) == 2, "what ended is forgotten"


def test_a_lease_of_a_branch_that_holds_nothing_any_more_ends_the_one_before() -> None:
    it = World().send(wire.Open(program=1), append(0, "AB"), append(1, role="user"))
    it.send(wire.Lease(program=1, op=2, branch=0, ttl_s=60))
    assert it.runtime.leases
    it.send(wire.Rollback(program=1, op=3, branch=0, to_op=0), wire.Lease(program=1, op=4, branch=0, ttl_s=60))
    assert not it.runtime.leases, "it would be kept for an hour, and charged to nobody"
    assert len(it.sent(rt.Lease)) == 1
