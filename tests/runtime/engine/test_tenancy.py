"""Public prefixes and leases at the engine's door, with a tiny real model."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_runtime.config import TenantShare
from radixserve_runtime.protocol import (
    Base,
    Cancel,
    Drop,
    Generate,
    Hello,
    Lease,
    LeaseLost,
    Owner,
    Publish,
    Release,
    ResetCache,
    Sampling,
)
from tests.support.engine_driver import Answer, Driver
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeDriver = Callable[..., Driver]

VOCABULARY = tuple(b"%d," % number for number in range(512))
A, B = Owner(tenant="a"), Owner(tenant="b")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> MakeDriver:
    model: Path = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")

    def build(**settings: Any) -> Driver:
        return Driver(model, vocabulary=VOCABULARY, **settings)

    return build


def prompt(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(10, 500) for _ in range(length)]


def publish(driver: Driver, token_ids: list[int], request_id: int = 900) -> Answer:
    driver.answers[request_id] = Answer()
    driver.core.handle(Publish(request_id=request_id, token_ids=tuple(token_ids)))
    driver.run()
    return driver.answers[request_id]


def cached(answer: Answer) -> int:
    assert answer.finished is not None
    return answer.finished.usage.cached_tokens


def lost(driver: Driver) -> list[int]:
    return [event.branch_id for event in driver.events if isinstance(event, LeaseLost)]


# ---- public prefixes ---------------------------------------------------------------------------------------------------


def test_every_tenant_shares_a_public_prefix_and_nobody_shares_what_follows(make: MakeDriver) -> None:
    plain, driver = make(), make()
    start = prompt(70, 1)
    assert publish(driver, start).finished is not None
    assert driver.core.stats().pages_locked == 5
    tail = prompt(40, 2)
    expected = plain.generate(start + tail).token_ids
    for owner, seen, again in ((A, 70, 109), (B, 70, 109), (Owner(tenant="a", cache_salt="x"), 70, 109)):
        first = driver.generate(start + tail, owner=owner)
        assert (cached(first), first.token_ids) == (seen, expected)
        second = driver.generate(start + tail, owner=owner)
        assert (cached(second), second.token_ids) == (again, expected)
    stats = driver.core.stats()
    assert stats.pages_free + stats.pages_cached + stats.pages_locked == stats.pages_total
    # 125 tokens of KV each: four whole pages are the operator's, for every namespace alike.
    assert stats.tenants["a"].pages == 2 * 4
    assert stats.tenants["b"].pages == 4


def test_a_public_prefix_outlives_floods_resets_and_a_new_connection(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    start = prompt(100, 1)
    publish(driver, start)
    for seed in range(8):
        driver.generate(prompt(200, 10 + seed), owner=A)
    driver.core.handle(Hello(version=1, fingerprint="test", vocabulary=VOCABULARY, eos_token_ids=()))
    assert cached(driver.generate([*start, 9], owner=B)) == 100
    again = publish(driver, start, 901)
    assert cached(again) == 100
    assert driver.core.stats().pages_locked == 7


def test_public_prefixes_never_take_more_than_half_the_pool(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    refused = publish(driver, prompt(300, 1))
    assert refused.failed is not None
    assert refused.failed.code == "public_prefix"
    assert "may pin 16 pages" in refused.failed.message
    assert publish(driver, prompt(200, 2), 901).finished is not None
    assert publish(driver, prompt(100, 3), 902).failed is not None
    # What is pinned can't be had: a request that needs it is refused, one that shares it isn't.
    assert driver.generate(prompt(400, 4), max_tokens=8).failed is not None
    assert driver.generate(prompt(200, 2) + prompt(200, 4), max_tokens=8).finished is not None


def test_what_a_public_prefix_would_strand_keeps_it_waiting(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    running = driver.submit(prompt(350, 1), max_tokens=100)
    driver.step()
    driver.core.handle(Publish(request_id=900, token_ids=tuple(prompt(200, 2))))
    driver.answers[900] = Answer()
    driver.run()
    refusal = driver.answers[900].failed
    assert refusal is not None
    assert (refusal.code, refusal.retryable) == ("busy", True)
    assert driver.answers[running].finished is not None
    assert publish(driver, prompt(200, 2), 901).finished is not None


def test_a_cancelled_public_prefix_gives_its_pages_back(make: MakeDriver) -> None:
    driver = make(kv_tokens=512, max_batch_tokens=64)
    driver.answers[900] = Answer()
    driver.core.handle(Publish(request_id=900, token_ids=tuple(prompt(250, 1))))
    driver.step()
    driver.core.handle(Cancel(request_ids=(900,)))
    driver.step()
    assert cached(driver.generate(prompt(250, 1), owner=A)) == 0  # half of it is a draft, which is nobody's to see
    assert publish(driver, prompt(250, 2), 901).finished is not None


def test_what_was_private_before_is_public_afterwards_without_a_second_copy(make: MakeDriver) -> None:
    driver = make()
    start, tail = prompt(64, 1), prompt(30, 2)
    expected = driver.generate(start + tail, owner=A).token_ids
    publish(driver, start)
    assert driver.core.stats().tenants["a"].pages == 3
    again = driver.generate(start + tail, owner=A)
    assert (cached(again), again.token_ids) == (93, expected)
    assert driver.core.stats().tenants["a"].pages == 3


def test_without_a_cache_there_is_nothing_to_publish(make: MakeDriver) -> None:
    answer = publish(make(prefix_cache=False), prompt(20, 1))
    assert answer.failed is not None
    assert "the prefix cache" in answer.failed.message


# ---- leases ------------------------------------------------------------------------------------------------------------


def leased(driver: Driver, seed: int, branch: int, ttl_s: float = 60.0, owner: Owner = A) -> list[int]:
    """A branch that has generated and now waits for a tool, under a lease; returns its log."""
    log = prompt(80, seed)
    log += driver.generate(log, owner=owner, branch=branch).token_ids
    driver.core.handle(Lease(branch_id=branch, base=Base(new_ids=tuple(log)), ttl_s=ttl_s, owner=owner))
    return log


def flood(driver: Driver, count: int, owner: Owner = B) -> None:
    for seed in range(count):
        driver.generate(prompt(100, 1000 + seed), owner=owner, max_tokens=4)


def test_a_lease_outlives_a_flood(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    log = leased(driver, 1, 501)
    assert driver.core.stats().num_leases == 1
    flood(driver, 10)
    assert lost(driver) == []
    assert cached(driver.generate([*log, 5], owner=A, branch=501)) == 95
    assert driver.core.stats().num_leases == 0


def test_without_a_lease_it_does_not(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    log = leased(driver, 1, 501)
    driver.core.handle(Release(branch_id=501))
    flood(driver, 10)
    assert cached(driver.generate([*log, 5], owner=A, branch=501)) == 0


def test_leases_on_everything_do_not_stop_others(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    logs = {branch: leased(driver, branch, branch) for branch in range(501, 509)}
    flood(driver, 3)
    gone = lost(driver)
    assert gone
    assert len(gone) == len(set(gone))
    assert driver.core.stats().num_leases == len(logs) - len(gone)
    # The others are whole: a broken lease is used up before another is broken.
    for branch in logs.keys() - set(gone):
        assert driver.core._cache.match((("tenant", "a"),), logs[branch]).num_tokens >= 95


def test_a_reset_keeps_what_is_leased_and_tells_how_much_that_is(make: MakeDriver) -> None:
    driver = make(kv_tokens=1024)
    log = leased(driver, 1, 501)
    other = prompt(100, 7)
    driver.generate(other, owner=B)
    before = driver.core.stats().num_resets
    driver.core.handle(ResetCache())
    stats = driver.core.stats()
    assert (stats.num_resets, stats.num_leases, stats.pages_locked) == (before + 1, 1, 0)
    assert 0 < stats.pages_cached * stats.page_size_tokens < 95 + stats.page_size_tokens
    assert lost(driver) == []
    assert cached(driver.generate(other, owner=B)) == 0
    assert cached(driver.generate([*log, 5], owner=A, branch=501)) == 95, "the lease held through the reset"
    driver.core.handle(ResetCache())
    assert driver.core.stats().pages_cached == 0, "it has ended, and with it what it kept"


def test_drop_and_a_new_connection_end_leases(make: MakeDriver) -> None:
    driver = make()
    leased(driver, 1, 501)
    leased(driver, 2, 502)
    driver.core.handle(Drop(branch_ids=(501,)))
    assert driver.core.stats().num_leases == 1
    driver.core.handle(Hello(version=1, fingerprint="test", vocabulary=VOCABULARY, eos_token_ids=()))
    assert driver.core.stats().num_leases == 0
    driver.step()
    assert lost(driver) == []


def test_a_lease_ends_with_its_time(make: MakeDriver) -> None:
    driver = make()
    now = [100.0]
    driver.core._clock = lambda: now[0]
    leased(driver, 1, 501, ttl_s=2.0)
    leased(driver, 2, 502, ttl_s=5.0)
    now[0] = 101.0
    leased(driver, 1, 501, ttl_s=2.0)  # again: in place of the first
    now[0] = 102.5
    driver.step()
    assert lost(driver) == []
    now[0] = 103.5
    driver.step()
    assert lost(driver) == [501]
    now[0] = 1000.0
    driver.step()
    assert lost(driver) == [501, 502]
    assert driver.core.stats().num_leases == 0


@pytest.mark.parametrize("base", [Base(length=40, hash=1), Base(length=3, hash=0, new_ids=(1,))])
def test_a_lease_on_an_unknown_base_is_lost_at_once(make: MakeDriver, base: Base) -> None:
    driver = make()
    driver.core.handle(Lease(branch_id=77, base=base, ttl_s=9.0, owner=A))
    driver.step()
    assert lost(driver) == [77]
    assert driver.core.stats().num_leases == 0


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
def test_a_lease_for_no_time_is_lost_at_once(make: MakeDriver, ttl_s: float) -> None:
    driver = make()
    leased(driver, 1, 501, ttl_s=ttl_s)
    driver.step()
    assert lost(driver) == [501]


def test_a_lease_goes_on_until_the_branch_runs_again(make: MakeDriver) -> None:
    driver = make(kv_tokens=512, max_running=1, max_batch_tokens=128)
    log = leased(driver, 1, 501)
    driver.submit(prompt(100, 2), owner=B, max_tokens=40)
    driver.step()
    back = driver.submit([*log, 5], owner=A, branch=501)
    assert driver.core.stats().num_leases == 1
    driver.run()
    assert cached(driver.answers[back]) == 95
    assert driver.core.stats().num_leases == 0


def test_what_has_just_ended_is_kept_until_its_client_has_been_heard(make: MakeDriver) -> None:
    """However long the step takes that is planned meanwhile, and then until it starts."""
    driver = make(kv_tokens=512, max_running=2, policy="fcfs")
    now = [100.0]
    driver.core._clock = driver.core._stepper._clock = lambda: now[0]
    mine = Owner(tenant="a", program=1)
    log = prompt(80, 1)
    first = driver.submit(log, owner=mine, branch=501, max_tokens=4)
    for seed in range(12):
        driver.submit(prompt(100, 1000 + seed), owner=B, max_tokens=4)
    while driver.answers[first].finished is None:
        driver.step()
    log += driver.answers[first].token_ids
    driver.core.step()
    now[0] += 10.0  # so long that took
    driver.collect()
    back = driver.submit([*log, 5], owner=mine, branch=501)
    driver.run()
    assert cached(driver.answers[back]) == 83
    assert driver.core.stats().num_leases == 0


def test_a_lease_of_what_is_not_there_protects_nothing_and_counts(make: MakeDriver) -> None:
    driver = make()
    driver.core.handle(Lease(branch_id=77, base=Base(new_ids=tuple(prompt(30, 1))), ttl_s=9.0, owner=A))
    assert driver.core.stats().num_leases == 1
    driver.core.handle(Release(branch_id=77))
    driver.core.handle(Release(branch_id=78))
    assert driver.core.stats().num_leases == 0


# ---- shares ------------------------------------------------------------------------------------------------------------

SHARES = (TenantShare(name="a", reserved_share=0.5), TenantShare(name="b", max_share=0.25))


def test_a_flood_leaves_a_tenant_what_it_has_reserved(make: MakeDriver) -> None:
    driver = make(kv_tokens=1024, tenants=SHARES)
    mine = prompt(400, 1)
    driver.generate(mine, owner=A, max_tokens=4)
    for seed in range(12):
        driver.generate(prompt(300, 50 + seed), owner=Owner(tenant="c"), max_tokens=4)
    assert cached(driver.generate(mine, owner=A, max_tokens=4)) == 399


def test_a_tenant_at_its_maximum_evicts_itself_alone(make: MakeDriver) -> None:
    driver = make(kv_tokens=1024, tenants=SHARES)
    others = prompt(400, 1)
    driver.generate(others, owner=Owner(tenant="c"), max_tokens=4)
    for seed in range(12):
        driver.generate(prompt(150, 50 + seed), owner=B, max_tokens=4)
        assert driver.core.stats().tenants["b"].pages <= 16
    assert driver.core.stats().pages_free > 0
    assert cached(driver.generate(others, owner=Owner(tenant="c"), max_tokens=4)) == 399


def test_a_tenant_at_its_maximum_waits_for_its_own_while_others_go_on(make: MakeDriver) -> None:
    driver = make(kv_tokens=1024, tenants=SHARES)
    held = [driver.submit(prompt(120, seed), owner=B, max_tokens=60, ignore_eos=True) for seed in range(5)]
    other = driver.submit(prompt(120, 77), owner=Owner(tenant="c"), max_tokens=4)
    for _ in range(20):
        driver.step()
        assert driver.core._pool.accounts.get(("tenant", "b")).num_pages <= 16
    assert driver.answers[other].ended
    driver.run()
    assert all(driver.answers[number].finished is not None for number in held)


def test_what_a_tenant_can_never_have_is_refused(make: MakeDriver) -> None:
    driver = make(kv_tokens=1024, tenants=SHARES)
    for owner, most in ((A, 1024), (B, 256), (Owner(tenant="c"), 512)):
        refused = driver.generate(prompt(most, 1), owner=owner, max_tokens=2)
        assert refused.failed is not None
        assert refused.failed.code == "context_length_exceeded"
        assert driver.generate(prompt(most - 1, 1), owner=owner, max_tokens=2).finished is not None


def test_usage_counts_the_kv_held(make: MakeDriver) -> None:
    driver = make()
    request_id = driver._next
    driver.core.handle(
        Generate(
            request_id=request_id,
            branch_id=1,
            base=Base(new_ids=tuple(prompt(50, 1))),
            sampling=Sampling(max_tokens=8, seed=0, ignore_eos=True),
            owner=A,
        )
    )
    driver.answers[request_id] = Answer()
    driver.run()
    finished = driver.answers[request_id].finished
    assert finished is not None
    assert finished.usage.kv_token_s > 0


def test_statistics_name_tenants_and_not_the_operator(make: MakeDriver) -> None:
    driver = make()
    publish(driver, prompt(40, 1))
    driver.generate(prompt(40, 2), owner=A)
    stats = driver.core.stats().tenants
    assert set(stats) == {"a"}
    assert stats["a"].charge > 0
    assert stats["a"].kv_token_s > 0
    assert stats["a"].pages == 4


def test_a_tenant_at_its_maximum_does_not_stop_the_background_of_others(make: MakeDriver) -> None:
    driver = make(kv_tokens=1024, tenants=SHARES)
    background = Owner(tenant="c", priority="background")
    beside = driver.submit(prompt(60, 77), owner=background, max_tokens=60, ignore_eos=True)
    driver.step()
    urgent = Owner(tenant="b", priority="interactive")
    for seed in range(6):
        driver.submit(prompt(150, seed), owner=urgent, max_tokens=60, ignore_eos=True)
    driver.run()
    finished = driver.answers[beside].finished
    assert finished is not None
    assert finished.usage.num_preemptions == 0


def test_what_has_just_been_computed_outlives_the_step_in_which_its_program_makes_up_its_mind(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    now = [100.0]
    driver.core._clock = driver.core._stepper._clock = lambda: now[0]
    owner = Owner(tenant="a", program=7)
    log = prompt(200, 1)
    log += driver.generate(log, owner=owner, branch=501).token_ids
    driver.generate(prompt(200, 2), owner=B, max_tokens=4)
    assert driver.core.stats().num_leases == 0
    running = driver.submit(prompt(250, 3), owner=B, max_tokens=4)  # needs more than what is not the program's
    driver.run()
    assert driver.answers[running].finished is not None
    assert driver.core._cache.match((("tenant", "a"),), log).num_tokens >= 215
    now[0] += 1.0
    driver.step()
    driver.generate(prompt(250, 4), owner=B, max_tokens=4)
    driver.generate(prompt(250, 5), owner=B, max_tokens=4)
    assert driver.core._cache.match((("tenant", "a"),), log).num_tokens < 215
    assert lost(driver) == []


def test_a_program_that_has_ended_is_not_waited_for(make: MakeDriver) -> None:
    driver = make(kv_tokens=512)
    driver.generate(prompt(200, 1), owner=Owner(tenant="a", program=7), branch=501)
    assert driver.core._pool.num_leased > 0
    driver.core.handle(Drop(branch_ids=(501,)))
    assert driver.core._pool.num_leased == 0
