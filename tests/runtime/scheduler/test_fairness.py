"""What docs/fairness.md promises between tenants, under a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.scheduler.harness import Load, Quick, prompt

SHAPES = st.tuples(st.integers(1, 120), st.integers(1, 60))


@pytest.mark.timeout(280)
@settings(max_examples=40, deadline=None)
@given(
    shapes=st.fixed_dictionaries({"a": SHAPES, "b": SHAPES, "c": SHAPES}),
    weights=st.fixed_dictionaries({"a": st.sampled_from([0.5, 1.0, 3.0]), "b": st.sampled_from([1.0, 2.0])}),
    policy=st.sampled_from(["dlpm", "vtc"]),
    quantum=st.sampled_from([32.0, 200.0]),
    max_running=st.sampled_from([2, 5, 16]),
    budget=st.sampled_from([16, 64]),
    itl_target_ms=st.sampled_from([0.0, 30.0]),
    depth=st.integers(2, 8),
    seed=st.integers(0, 1000),
)
def test_the_gap_of_two_backlogged_tenants_is_bounded(
    shapes: dict[str, tuple[int, int]],
    weights: dict[str, float],
    policy: str,
    quantum: float,
    max_running: int,
    budget: int,
    itl_target_ms: float,
    depth: int,
    seed: int,
) -> None:
    """|service_i / w_i - service_j / w_j| <= 2 (2 quantum + largest charge of a step / weight), over every interval.

    An interval ends where a step leaves nothing of one of them waiting.
    """
    machine = Quick(
        4096,
        16,
        tenants=weights,
        policy=policy,
        quantum=quantum,
        max_running=max_running,
        max_batch_tokens=budget,
        itl_target_ms=itl_target_ms,
        min_chunk_tokens=8,
    )
    load = Load(machine, shapes, seed)
    # Somebody has been served alone for a while, and a third comes and goes.
    load.keep(depth, "b")
    for _ in range(load.source.randint(0, 60)):
        load.step()
        load.keep(depth, "b")
    load.keep(depth, "a", "b")
    gap, largest, gaps = 0.0, 0.0, [0.0]
    for _ in range(150):
        load.keep(depth, "a", "b")
        if load.source.random() < 0.1:
            load.send("c")
        last = load.charges()
        load.step()
        shares = {name: (charge - last.get(name, 0.0)) / weights.get(name, 1.0) for name, charge in load.charges().items()}
        largest = max(largest, *shares.values())
        gap += shares["a"] - shares["b"]
        gaps.append(gap)
        assert max(gaps) - min(gaps) <= 2 * (2 * quantum + largest)
        if not load.waiting("a") or not load.waiting("b"):
            gaps = [gap]


def ratio(policy: str, shapes: dict[str, tuple[int, int]], weights: dict[str, float], depth: int = 8, **config: Any) -> float:
    machine = Quick(4096, 16, policy=policy, tenants=weights, quantum=128.0, **config)
    load = Load(machine, shapes)
    load.keep(depth, "a", "b")
    for _ in range(700):
        load.step()
        load.keep(depth, "a", "b")
    charges = load.charges()
    return charges["a"] / charges["b"]


@pytest.mark.parametrize("policy", ["dlpm", "vtc"])
@pytest.mark.parametrize(
    ("shapes", "config"),
    [
        ({"a": (100, 40), "b": (100, 40)}, {}),
        ({"a": (20, 400), "b": (20, 400)}, {"max_running": 6}),
        ({"a": (20, 400), "b": (300, 4)}, {}),
    ],
    ids=["equal", "slots", "decode-against-prefill"],
)
def test_weights_three_to_one(policy: str, shapes: dict[str, tuple[int, int]], config: dict[str, Any]) -> None:
    assert ratio(policy, shapes, {"a": 3.0}, **config) == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize("policy", ["dlpm", "vtc"])
def test_ten_times_more_and_longer_prompts_gain_nothing(policy: str) -> None:
    assert ratio(policy, {"a": (500, 40), "b": (50, 20)}, {}, 20) == pytest.approx(1.0, abs=0.1)


def test_fcfs_and_lpm_know_no_tenants() -> None:
    for policy in ("fcfs", "lpm"):
        assert ratio(policy, {"a": (500, 40), "b": (50, 20)}, {}, 8) > 2.0


def test_an_idle_tenants_share_goes_to_the_others() -> None:
    """Work-conserving: alone a tenant of small weight is served as fast as without any weights."""
    steps = []
    for weights in ({}, {"a": 0.1, "b": 100.0}):
        machine = Quick(4096, 16, tenants=weights)
        load = Load(machine, {"a": (200, 40), "b": (1, 1)})
        load.send("b")
        load.keep(30, "a")
        steps.append(machine.run_all())
    assert steps[0] == pytest.approx(steps[1], rel=0.05)


def test_a_tenant_that_returns_has_saved_up_nothing_and_owes_nothing() -> None:
    machine = Quick(4096, 16, quantum=128.0, max_running=8)
    load = Load(machine, {"a": (100, 40), "b": (100, 40)})
    load.send("b")
    for _ in range(400):
        load.keep(8, "a")
        load.step()
    before = load.charges()
    assert before["a"] > 20 * before["b"]
    for _ in range(400):
        load.keep(8, "a", "b")
        load.step()
    after = load.charges()
    assert (after["b"] - before["b"]) / (after["a"] - before["a"]) == pytest.approx(1.0, abs=0.2)


def test_a_light_tenants_prompt_goes_before_a_heavy_ones_running_prefill() -> None:
    machine = Quick(4096, 16, max_batch_tokens=64)
    for number in range(4):
        machine.add(prompt(2000, number), tenant="heavy")
    for _ in range(12):
        machine.step()
    light = machine.add(prompt(60, 9), tenant="light")
    machine.step()
    assert light.first_token_s > 0


def test_a_light_tenant_gets_the_next_slot_of_a_heavy_one_with_long_outputs() -> None:
    machine = Quick(4096, 16, max_running=4, quantum=64.0)
    for number in range(12):
        machine.add(prompt(10, number), 500, tenant="heavy")
    for _ in range(50):
        machine.step()
    light = [machine.add(prompt(10, 20 + number), 300, tenant="light") for number in range(3)]
    for _ in range(60):
        machine.step()
    assert light[0].first_token_s > 0
    machine.run_all()
    machine.check_idle()


def test_charges_are_for_what_is_computed_once() -> None:
    machine = Quick(4096, 16)
    text = prompt(100, 0)
    machine.add(text, 11, tenant="a")
    machine.run_all()
    first = machine.scheduler.tenant_stats()["a"]
    # 100 tokens of prefill, 10 decodes (the last token drawn isn't computed), and the context of each step.
    context = sum(range(100, 111)) / 1000
    assert first.charge == pytest.approx(100 + 2 * 10 + context)
    assert first.kv_token_s > 0
    again = machine.add([*text, 5], 1, tenant="a")
    machine.run_all()
    assert machine.scheduler.tenant_stats()["a"].charge - first.charge == pytest.approx(1 + 0.101)
    assert again.kv_token_s == pytest.approx(machine.scheduler.tenant_stats()["a"].kv_token_s - first.kv_token_s)


def test_what_is_computed_again_after_a_preemption_is_not_charged_again() -> None:
    charges = []
    for num_pages in (256, 16):
        machine = Quick(num_pages, 4, growth_tokens=1, prefix_cache=False)
        for number in range(2):
            machine.add(prompt(20, number), max_tokens=20, tenant=str(number))
        machine.run_all()
        charges.append({name: account.charge for name, account in machine.scheduler.tenant_stats().items()})
    assert machine.scheduler.counters.num_preemptions > 0
    assert charges[0] == pytest.approx(charges[1], rel=1e-3)  # one step of context more or less


def test_stats_count_what_waits_uncached() -> None:
    machine = Quick(256, 16, max_running=1)
    known = prompt(64, 0)
    machine.add(known, max_tokens=1, tenant="a")
    machine.run_all()
    machine.add(prompt(30, 1), max_tokens=5, tenant="b")
    machine.step()
    machine.add([*known, 1, 2, 3], tenant="a")
    stats = machine.scheduler.tenant_stats()
    assert (stats["a"].num_waiting, stats["a"].num_waiting_uncached_tokens, stats["a"].num_running) == (1, 3, 0)
    assert (stats["b"].num_waiting, stats["b"].num_running) == (0, 1)
    machine.run_all()


def test_idle_tenants_and_programs_are_forgotten() -> None:
    machine = Quick(256, 16, max_idle_records=8)
    for number in range(50):
        machine.add(prompt(8, number), max_tokens=1, tenant=f"tenant {number}", program=number + 1)
        machine.run_all()
    accounts = machine.scheduler._accounts
    assert len(machine.scheduler.tenant_stats()) == 8
    assert len(accounts._idle_programs) == 8
    assert not accounts._active
    assert not accounts._programs
    assert len(machine.scheduler._state.waiting._heap) < 100
