"""Continuous, dynamic and static batching, in steps of a virtual clock."""

from __future__ import annotations

import random

import pytest

from tests.runtime.scheduler.harness import Machine, prompt


def lengths(order: str) -> list[int]:
    """Output tokens of 32 requests: three quarters 16, one quarter 256."""
    if order == "spread":
        return [256 if number % 4 == 3 else 16 for number in range(32)]
    mixed = [256] * 8 + [16] * 24
    random.Random(order).shuffle(mixed)
    return mixed


def steps_of(mode: str, outputs: list[int]) -> int:
    machine = Machine(1024, 16, schedule=mode, max_running=8)
    for number, max_tokens in enumerate(outputs):
        machine.add(prompt(8, number), max_tokens=max_tokens)
    steps = machine.run_all()
    machine.check_idle()
    return steps


def ideal_steps(outputs: list[int], num_slots: int) -> int:
    """Each request takes the first slot that is free, in order of arrival, and a step for each token."""
    slots = [0] * num_slots
    for length in outputs:
        slots[slots.index(min(slots))] += length
    return max(slots)


@pytest.mark.parametrize("order", ["spread", "a", "b", "c"])
def test_continuous_needs_the_ideal_number_of_steps(order: str) -> None:
    """The bar is 85 % of the ideal ratio of steps; in steps alone nearly all of it is there."""
    outputs = lengths(order)
    static, continuous, ideal = steps_of("static", outputs), steps_of("continuous", outputs), ideal_steps(outputs, 8)
    assert static == sum(max(outputs[first : first + 8]) for first in range(0, 32, 8))
    assert steps_of("dynamic", outputs) == static
    assert static / continuous >= 0.97 * (static / ideal)


def test_static_waits_for_a_full_batch_or_the_delay() -> None:
    machine = Machine(256, 16, schedule="static", max_running=4, max_queue_delay_ms=50.0)
    for number in range(3):
        machine.add(prompt(8, number), max_tokens=2)
    assert machine.step() is None
    assert machine.scheduler.next_deadline_s == pytest.approx(1.05)
    machine.add(prompt(8, 3), max_tokens=2)
    plan = machine.step()
    assert plan is not None
    assert len(plan.chunks) == 4


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_batch_is_closed_until_all_its_members_end(mode: str) -> None:
    machine = Machine(256, 16, schedule=mode, max_running=4)
    members = [machine.add(prompt(8, number), max_tokens=2 + 8 * (number == 0)) for number in range(4)]
    machine.step()
    late = machine.add(prompt(8, 9), max_tokens=1)
    while members[0] not in machine.ends:
        assert machine.scheduler.next_deadline_s is None
        machine.step()
    assert late.first_scheduled_s < 0
    assert machine.scheduler.counters.num_padded_slots == (8 * 3 if mode == "static" else 0)
    machine.run_all()
    assert late in machine.ends


def test_dynamic_takes_what_waits_when_the_engine_becomes_free_and_static_does_not() -> None:
    for mode, expected in (("dynamic", True), ("static", False)):
        machine = Machine(256, 16, schedule=mode, max_running=4, max_queue_delay_ms=10_000.0)
        for number in range(4):
            machine.add(prompt(8, number), max_tokens=2)
        machine.step()
        machine.add(prompt(8, 9), max_tokens=1)
        machine.step()
        assert (machine.step() is not None) is expected
        if not expected:
            assert machine.scheduler.next_deadline_s == pytest.approx(11.0, abs=0.1)


def test_an_idle_engine_waits_for_company_in_dynamic_mode() -> None:
    machine = Machine(256, 16, schedule="dynamic", max_running=4)
    machine.add(prompt(8, 0), max_tokens=1)
    assert machine.step() is None
    assert machine.scheduler.next_deadline_s == pytest.approx(1.05)
    machine.run_all()
    machine.now_s += 1.0
    machine.add(prompt(8, 1), max_tokens=1)
    assert machine.step() is None


def test_cancelling_members_and_preempting_them_ends_no_batch_early() -> None:
    machine = Machine(16, 4, schedule="static", max_running=4, growth_tokens=1)
    members = [machine.add(prompt(12, number), max_tokens=20) for number in range(4)]
    others = [machine.add(prompt(12, number), max_tokens=2, priority="interactive") for number in range(4, 8)]
    # The batch is of the interactive ones; the rest form the next.
    machine.step()
    machine.scheduler.cancel(others[0])
    machine.run_all()
    assert max(machine.ends[other] for other in others[1:]) < min(machine.ends[member] for member in members)
    machine.check_idle()
