"""Tenants that change while the process runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.tenants.accounts import Accounts
from radixserve_tokenizer.tenants.identity import Tenants, TenantSettingsError
from radixserve_tokenizer.tenants.quotas import Quota
from tests.tokenizer.programs.harness import World, append, gen
from tests.tokenizer.tenants.people import answer_all, ask, key, tenant, world

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve_tokenizer.config import TenantConfig


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tenants.json"


def change(it: World, file: Path, *tenants: TenantConfig) -> None:
    other = file.with_suffix(".new")
    other.write_bytes(msgspec.json.encode(tenants))
    os.replace(other, file)
    it.now += 1
    it.settle()


def test_a_rotated_key_holds_at_once_and_what_runs_goes_on(file: Path) -> None:
    it = world(tenant("a"), tenant("b"), tenants_update=str(file))
    it.send(*ask(1, "a"), *ask(2, "b"))
    fresh = msgspec.structs.replace(tenant("a"), key_hashes=tenant("new").key_hashes)
    change(it, file, fresh)
    it.send(*ask(3, "a"), *ask(4, "new"), *ask(5, "b"))
    assert {event.program for event in it.of(wire.Refused)} == {3, 5}
    assert {event.status for event in it.of(wire.Refused)} == {401}
    it.send(append(2, "x", program=2), gen(3, program=2))
    answer_all(it)
    assert sorted((done.program, done.op) for done in it.of(wire.Done)) == [(1, 1), (2, 1), (2, 3), (4, 1)]
    owners = {message.owner.tenant for message in it.sent(rt.Generate)}
    assert owners == {"a", "b"}
    it.send(*(wire.Close(program=number) for number in (1, 2, 4)))
    assert it.core.services.admission.num_programs == 0


def test_limits_and_classes_change(file: Path) -> None:
    it = world(tenant("a", max_running=1, max_programs=3), tenants_update=str(file))
    it.send(*ask(1, "a"), *ask(2, "a"), *ask(3, "a"), *ask(4, "a"))
    assert len(it.runtime.requests) == 1
    assert it.one(wire.Refused).program == 4
    change(it, file, tenant("a", max_running=2, max_programs=10, requests_per_minute=1, classes=("background",)))
    assert len(it.runtime.requests) == 2, "who was held back runs"
    it.send(*ask(5, "a"), *ask(6, "a"))
    assert [event.program for event in it.of(wire.Refused)] == [4, 6]
    assert it.one(wire.Admitted, program=5).limits is not None
    answer_all(it)
    assert it.sent(rt.Generate)[-1].owner.priority == "background"


def test_weights_go_to_the_runtime_now_and_after_it_was_away(file: Path) -> None:
    it = world(tenant("a"), tenants_update=str(file))
    assert not it.sent(rt.SetWeights)
    change(it, file, tenant("a", weight=3.0))
    assert [message.weights for message in it.sent(rt.SetWeights)] == [{"a": 3.0}]
    it.core.on_disconnected()
    it.core.on_runtime(it.runtime.ready())
    it.settle()
    assert len(it.sent(rt.SetWeights)) == 2


def test_what_can_not_be_taken_over_changes_nothing(file: Path) -> None:
    it = world(tenant("a"), tenants_update=str(file))
    file.write_bytes(b"{ nonsense")
    it.now += 1
    it.settle()
    for wrong in ((tenant("a"), tenant("a")), ()):
        change(it, file, *wrong)
    it.send(*ask(1, "a"))
    answer_all(it)
    assert it.one(wire.Done)


def test_a_file_that_says_the_same_changes_nothing(file: Path) -> None:
    it = world(tenant("a", requests_per_minute=2), tenants_update=str(file))
    it.send(*ask(1, "a"), *ask(2, "a"))
    change(it, file, tenant("a", requests_per_minute=2))
    it.send(*ask(3, "a"))
    assert it.one(wire.Refused).program == 3
    assert not it.sent(rt.SetWeights)


def test_a_tenant_that_comes_back_finds_its_programs_counted() -> None:
    accounts = Accounts(None)
    tenants = Tenants([tenant("a"), tenant("b")], accounts, 0.0)
    first = tenants.identify(key("a"))
    assert first is not None
    first.num_programs = 1
    assert tenants.update([tenant("b")], 1.0)
    assert tenants.identify(key("a")) is None
    assert [one.name for one in tenants.all] == ["b"]
    assert tenants.update([tenant("a", weight=2.0), tenant("b")], 2.0)
    assert tenants.identify(key("a")) is first
    first.num_programs = 0
    tenants.update([tenant("b")], 3.0)
    tenants.update([tenant("a"), tenant("b")], 4.0)
    assert tenants.identify(key("a")) is not first


def test_a_server_without_tenants_stays_one() -> None:
    with pytest.raises(TenantSettingsError, match="start it again"):
        Tenants([], Accounts(None), 0.0).update([tenant("a")], 1.0)


def test_what_was_used_of_the_minute_stays_used() -> None:
    quota = Quota(tenant("a", requests_per_minute=10), 0.0)
    for _ in range(6):
        quota.admit(0, 0.0)
    quota.change(tenant("a", requests_per_minute=8), 0.0)
    limits = quota.limits(0.0)
    assert limits is not None
    assert (limits.limit_requests, limits.remaining_requests) == (8, 2)
    quota.change(tenant("a", requests_per_minute=4), 0.0)
    assert quota.wait_s(0, 0.0)[0] == pytest.approx(45.0)
    quota.change(tenant("a"), 0.0)
    assert quota.limits(0.0) is None
    quota.change(tenant("a", tokens_per_minute=5), 0.0)
    assert quota.counts_tokens
