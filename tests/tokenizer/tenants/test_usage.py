"""What tenants used: charged to the right one, told to the right one, kept."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.config import TenantConfig
from radixserve_tokenizer.tenants.accounts import MAX_NAMED
from tests.tokenizer.programs.harness import World, append, config, gen
from tests.tokenizer.tenants.people import answer_all, ask, key, reply, tenant, world

if TYPE_CHECKING:
    from pathlib import Path


def account(it: World, name: str) -> dict[str, Any]:
    return it.core.services.accounts.describe(name)[name]


def finish(it: World, index: int, **usage: Any) -> None:
    """The runtime ends a generation with this usage."""
    request = it.sent(rt.Generate)[index]
    it.runtime.requests.pop(request.request_id, None)
    event = rt.Finished(request_id=request.request_id, reason="length", usage=rt.Usage(**usage))
    it.runtime.out.append(event)
    it.settle()


def test_usage_is_charged_to_its_tenant() -> None:
    it = world(tenant("a"), tenant("b"))
    it.send(*ask(1, "a"), *ask(2, "b"))
    finish(it, 0, prompt_tokens=10, cached_tokens=4, output_tokens=3, queued_s=0.5, kv_token_s=2.0)
    assert account(it, "a") == {
        "requests": 1,
        "refused": 0,
        "input_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 3,
        "kv_token_s": 2.0,
        "queue_s": 0.5,
    }
    assert account(it, "b") | {"requests": 0} == dict.fromkeys(account(it, "b"), 0)


def test_what_was_cancelled_costs_what_it_cost() -> None:
    it = world(tenant("a", tokens_per_minute=1000))
    it.send(*ask(1, "a", "x" * 10, max_tokens=100))
    request = it.sent(rt.Generate)[0]
    del it.runtime.requests[request.request_id]  # its answer comes from here
    it.send(wire.Cancel(program=1, branches=(0,)))
    assert it.sent(rt.Cancel)
    it.send(*ask(2, "a", "x" * 10, max_tokens=100))
    limits = it.of(wire.Admitted)[-1].limits
    assert limits is not None
    assert limits.remaining_tokens == 1000 - 2 * 110, "until the runtime has said what it cost, the estimate counts"
    late = rt.Finished(
        request_id=request.request_id, reason="abort", usage=rt.Usage(prompt_tokens=10, cached_tokens=0, output_tokens=7)
    )
    it.core.on_runtime(late)
    it.core.on_runtime(late)  # said twice, charged once
    assert (account(it, "a")["input_tokens"], account(it, "a")["output_tokens"]) == (10, 7)
    it.send(*ask(3, "a", "x", max_tokens=0))
    limits = it.of(wire.Admitted)[-1].limits
    assert limits is not None
    assert limits.remaining_tokens == 1000 - 17 - 110 - 1


def test_both_requests_of_a_scoring_are_charged() -> None:
    it = world(tenant("a"), hold=False)
    it.send(wire.Open(program=1, api_key=key("a")), append(0, "hello world"))
    it.send(wire.Score(program=1, op=1, branch=0, var=0, options=("A", "B"), method="unconditional"))
    assert account(it, "a")["input_tokens"] == len(it.runtime.prompts[it.sent(rt.Score)[0].request_id]) + 1


def test_time_held_back_is_charged_once() -> None:
    it = world(tenant("a", max_running=1))
    it.send(*ask(0, "a"), wire.Open(program=1, api_key=key("a")), append(0, "hello world"))
    it.send(wire.Score(program=1, op=1, branch=0, var=0, options=("A", "B"), method="unconditional"))
    it.now += 3
    answer_all(it)
    assert it.one(wire.Done, program=1).usage.queued_s == pytest.approx(3)
    assert account(it, "a")["queue_s"] == pytest.approx(3)


def test_everybody_sees_what_is_theirs_and_an_admin_all() -> None:
    it = world(tenant("a"), tenant("b"), tenant("boss", admin=True), hold=False)
    it.send(*ask(1, "a"), *ask(2, "b"))
    assert set(reply(it, "usage", api_key=key("a")).body["tenants"]) == {"a"}
    everything = reply(it, "usage", api_key=key("boss")).body["tenants"]
    assert set(everything) == {"a", "b", "boss"}
    assert everything["a"] == account(it, "a")
    for body in ({}, {"api_key": "wrong-key"}, {"api_key": 5}, {"api_key": None}):
        refused = reply(it, "usage", **body)
        assert (refused.status, refused.body) == (401, {})
        assert "wrong-key" not in refused.error


def test_whose_a_key_is() -> None:
    old, new = key("a"), "another key of a's"
    hashes = tuple(hashlib.sha256(one.encode()).hexdigest() for one in (old, new))
    it = world(TenantConfig(name="a", key_hashes=hashes), tenant("boss", admin=True), hold=False)
    assert [reply(it, "tenant", api_key=one).body for one in (old, new, key("boss"))] == [
        {"tenant": "a"},
        {"tenant": "a"},
        {"tenant": "boss"},
    ]
    for body in ({}, {"api_key": "wrong-key"}, {"api_key": 5}):
        assert (reply(it, "tenant", **body).status, reply(it, "tenant", **body).body) == (401, {})


def test_without_tenants_there_is_one_account() -> None:
    assert reply(World(), "tenant", api_key="whatever").body == {"tenant": ""}
    it = World().send(wire.Open(program=1, api_key="whatever"), append(0, "a"), gen(1))
    assert reply(it, "usage", api_key="something else").body["tenants"][""]["requests"] == 1


def test_statistics_name_few_tenants_and_sum_up_the_rest() -> None:
    names = [f"t{number}" for number in range(MAX_NAMED + 20)]
    it = world(*map(tenant, names))
    for number, name in enumerate(names):
        it.now += 1
        it.send(*ask(number, name))
    stats = rt.Stats(tenants={name: rt.TenantStats(pages=2, charge=1.5, num_running=1) for name in names})
    it.core.on_runtime(rt.Heartbeat(stats=stats))
    body = reply(it, "stats").body
    assert len(body["tenants"]) == MAX_NAMED
    assert body["tenants"][names[-1]] == {
        **account(it, names[-1]),
        "num_running": 1,
        "num_waiting": 0,
        "num_waiting_uncached_tokens": 0,
        "charge": 1.5,
        "pages": 2,
        "num_queued": 1,
    }
    other = body["tenants_other"]
    assert (other["requests"], other["pages"], other["charge"], other["num_queued"]) == (20, 40, 30.0, 20)
    assert (body["num_queued"], body["num_held"]) == (MAX_NAMED + 20, 0)


def test_accounts_outlive_the_process(tmp_path: Path) -> None:
    people = tenant("a"), tenant("b")
    first = World(settings=config(tenants=people, usage_db=str(tmp_path / "usage.db")))
    first.send(*ask(1, "a"), *ask(2, "b"))
    before = account(first, "a")
    assert before["output_tokens"]
    first.core.close()
    second = World(settings=config(tenants=people[:1], usage_db=str(tmp_path / "usage.db")))
    assert account(second, "a") == before
    second.send(*ask(1, "a"))
    assert account(second, "a")["output_tokens"] == 2 * before["output_tokens"]
    assert set(second.core.services.accounts.describe()) == {"a", "b"}, "what a former tenant owes is kept"
    second.core.close()


# ---- leases -------------------------------------------------------------------------------------------------------


def leased(ttl_s: float = 20.0) -> World:
    it = world(tenant("a"), hold=False)
    it.send(wire.Open(program=1, api_key=key("a")), append(0, "hello world"), gen(1))
    return it.send(wire.Lease(program=1, op=2, branch=0, ttl_s=ttl_s))


def test_a_lease_is_the_branchs_log_and_its_release_ends_it() -> None:
    it = leased()
    lease = it.sent(rt.Lease)[0]
    assert (lease.branch_id, lease.ttl_s, lease.owner.tenant) == (it.sent(rt.Generate)[0].branch_id, 20.0, "a")
    held = it.runtime.logs[lease.branch_id]
    it.now += 2
    it.send(wire.Release(program=1, op=3, branch=0), wire.Release(program=1, op=4, branch=0))
    assert it.sent(rt.Release) == [rt.Release(branch_id=lease.branch_id)]
    assert account(it, "a")["kv_token_s"] == pytest.approx(2 * len(held))
    it.send(append(5, " and"), gen(6))
    assert it.one(wire.Done, op=6)
    assert not it.of(wire.Failed)


def test_a_lease_again_takes_the_place_of_the_first() -> None:
    it = leased()
    held = len(it.runtime.logs[it.sent(rt.Lease)[0].branch_id])
    it.now += 2
    it.send(wire.Lease(program=1, op=3, branch=0, ttl_s=5.0))
    it.now += 1
    it.send(wire.Release(program=1, op=4, branch=0))
    assert [lease.ttl_s for lease in it.sent(rt.Lease)] == [20.0, 5.0]
    assert account(it, "a")["kv_token_s"] == pytest.approx(3 * held)


def test_a_lease_ends_with_the_branchs_next_generation() -> None:
    it = leased()
    held = len(it.runtime.logs[it.sent(rt.Lease)[0].branch_id])
    it.now += 2
    it.send(append(3, " and"), gen(4))
    it.now += 50
    it.send(wire.Ping(), wire.Release(program=1, op=5, branch=0))
    assert account(it, "a")["kv_token_s"] == pytest.approx(2 * held)
    assert not it.sent(rt.Release)


@pytest.mark.parametrize("end", ["drop", "close", "gone"])
def test_a_lease_ends_with_its_branch(end: str) -> None:
    it = leased()
    it.now += 1
    if end == "drop":
        it.send(wire.Drop(program=1, branches=(0,)))
    elif end == "close":
        it.send(wire.Close(program=1))
    else:
        it.core.drop_client(b"c", "gone")
        it.settle()
    assert not it.runtime.leases
    assert len(it.sent(rt.Release)) == 1
    assert not it.of(wire.LeaseLost)
    assert len(it.core.services.leases) == 0
    assert account(it, "a")["kv_token_s"] > 0


def test_a_lost_lease_is_told_once() -> None:
    it = leased()
    branch_id = it.sent(rt.Lease)[0].branch_id
    for _ in range(2):
        it.core.on_runtime(rt.LeaseLost(branch_id=branch_id))
        it.settle()
    assert it.one(wire.LeaseLost) == wire.LeaseLost(program=1, branch=0)
    it.send(wire.Release(program=1, op=3, branch=0))
    assert not it.sent(rt.Release)


def test_with_the_runtime_go_its_leases() -> None:
    it = leased()
    it.core.on_disconnected()
    it.flush()
    assert it.one(wire.LeaseLost).branch == 0
    it.send(wire.Lease(program=1, op=3, branch=0, ttl_s=1.0))
    assert len(it.of(wire.LeaseLost)) == 2, "without a runtime there is nothing to keep"


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf"), 3601.0])
def test_a_lease_has_a_sensible_time(ttl_s: float) -> None:
    it = leased(ttl_s)
    failed = it.one(wire.Failed)
    assert (failed.status, failed.param) == (400, "ttl_s")
    assert not it.sent(rt.Lease)


def test_a_lease_doesnt_cut_text_into_pieces() -> None:
    it = world(hold=False).send(wire.Open(program=1), append(0, "hel"))
    it.send(wire.Lease(program=1, op=1, branch=0, ttl_s=1.0), append(2, "lo"), gen(3))
    assert not it.sent(rt.Lease), "nothing is computed yet, so there is nothing to keep"
    assert len(it.runtime.prompts[it.sent(rt.Generate)[0].request_id]) == 1
