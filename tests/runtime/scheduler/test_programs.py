"""Order within a tenant: classes, ageing, programs by attained service, branches of one fork; and what a decision may look at."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from radixserve_runtime.scheduler.waiting import OVERDUE_EVERY
from tests.runtime.scheduler.harness import Machine, prompt

# ---- classes -----------------------------------------------------------------------------------------------------


def interactive_waits(flood: int) -> tuple[list[float], list[float], Machine]:
    """Times to the first token of interactive prompts beside a flood of background ones, and the durations of the flood's steps."""
    machine = Machine(2048, 16, max_running=8, max_batch_tokens=256, ageing_s=5.0)
    background = [machine.add(prompt(150, number), 60, priority="background") for number in range(flood)]
    waits, steps = [], []
    for number in range(25):
        for _ in range(20):
            before = machine.now_s
            if machine.step() is not None:
                steps.append(machine.now_s - before)
        urgent = machine.add(prompt(100, 1000 + number), 4, priority="interactive")
        while urgent.first_token_s < 0:
            machine.step()
        waits.append(urgent.first_token_s - urgent.arrival_s)
    machine.run_all()
    assert all(sequence in machine.ends for sequence in background)
    machine.check_idle()
    return waits, steps, machine


def test_a_background_flood_does_not_hold_up_interactive_prompts() -> None:
    unloaded, _, _ = interactive_waits(0)
    waits, steps, machine = interactive_waits(200)
    median = sorted(steps)[len(steps) // 2]
    assert max(waits) <= max(unloaded) + 2 * median
    assert machine.scheduler.counters.num_preemptions > 0


def test_background_keeps_its_slot_from_others_that_are_ahead_of_its_tenant() -> None:
    """Classes are within a tenant: another tenant's interactive prompts don't take a share that isn't theirs."""
    machine = Machine(2048, 16, max_running=3, quantum=64.0)
    machine.add(prompt(8, 0), 100, tenant="greedy")
    modest = machine.add(prompt(8, 1), 100, tenant="modest", priority="background")
    machine.add(prompt(400, 2), 100, tenant="greedy")
    for _ in range(8):
        machine.step()
    machine.add(prompt(8, 3), 10, tenant="greedy", priority="interactive")
    machine.step()
    assert machine.scheduler.num_running == 3
    assert modest.num_preemptions == 0
    own = machine.add(prompt(8, 4), 10, tenant="modest", priority="interactive")
    machine.step()
    assert own.first_token_s > 0
    machine.run_all()


@pytest.mark.parametrize("priority", ["standard", "background"])
def test_an_overdue_sequence_is_admitted_within_four_admissions(priority: str) -> None:
    """However many of a higher class come, and whatever is in the cache."""
    machine = Machine(2048, 16, max_running=2, ageing_s=1.0)
    low = [machine.add(prompt(40, number), 4, priority=priority) for number in range(3)]
    admitted: list[Any] = []
    number = 10
    while any(sequence.first_scheduled_s < 0 for sequence in low):
        while machine.scheduler.num_waiting < 12:
            number += 1
            machine.add(prompt(40, number), 4, priority="interactive")
        plan = machine.step()
        assert plan is not None
        admitted += [chunk.sequence for chunk in plan.chunks if chunk.start == 0]
        assert number < 2000, "starved"
    positions = [admitted.index(sequence) for sequence in low]
    due_s = 1.0 * (2 if priority == "background" else 1)
    first_due = next(index for index, sequence in enumerate(admitted) if sequence.first_scheduled_s >= 1.0 + due_s)
    assert positions == sorted(positions)
    assert positions[0] >= first_due
    assert positions[-1] <= first_due + OVERDUE_EVERY * len(low)


# ---- programs ----------------------------------------------------------------------------------------------------


def test_short_programs_end_before_long_ones() -> None:
    means = {}
    for policy in ("fcfs", "lpm", "dlpm"):
        machine = Machine(4096, 16, max_running=2, policy=policy, level_unit=128.0, ageing_s=1000.0)
        # Three programs of twenty generations each are there when ten of one generation come.
        longs = [machine.add(prompt(60, number), 20, program=1 + number % 3) for number in range(60)]
        for _ in range(30):
            machine.step()
        shorts = [machine.add(prompt(60, 100 + number), 20, program=10 + number) for number in range(10)]
        machine.run_all()
        ends = [machine.ends[short] for short in shorts]
        ends += [max(machine.ends[long] for long in longs[first::3]) for first in range(3)]
        means[policy] = sum(ends) / len(ends)
        assert policy != "dlpm" or max(ends[:10]) < min(ends[10:])
    assert means["fcfs"] >= 1.5 * means["dlpm"]
    assert means["lpm"] >= 1.5 * means["dlpm"]


def test_levels_are_coarse_and_within_one_arrival_decides_while_the_cache_keeps_everything() -> None:
    machine = Machine(256, 16, max_running=1, level_unit=1024.0)
    known = prompt(64, 0)
    first = machine.add(known, 2, program=1)
    machine.run_all()
    assert first in machine.ends
    stranger, again = machine.add(prompt(64, 1), 1, program=2), machine.add([*known, 1], 1, program=1)
    machine.run_all()
    assert machine.order.index(stranger) < machine.order.index(again)


def computed(policy: str, num_pages: int) -> int:
    """Requests without a program come at once, over six beginnings in a random order."""
    machine = Machine(num_pages, 16, max_running=2, policy=policy)
    source = random.Random(7)
    for number in range(200):
        machine.add([*prompt(96, source.randrange(6)), *prompt(8, 100 + number)], 2)
    machine.run_all()
    return machine.scheduler.counters.num_prompt_tokens_computed


def test_where_the_cache_does_not_outlive_the_wait_the_longest_prefix_goes_first() -> None:
    tight, ample = ({policy: computed(policy, pages) for policy in ("fcfs", "lpm", "dlpm")} for pages in (30, 1024))
    assert tight["fcfs"] > 1.5 * tight["lpm"]
    assert tight["dlpm"] < 1.3 * tight["lpm"]
    assert ample["dlpm"] == ample["fcfs"]


def longest_wait(policy: str) -> float:
    """Of twelve programs of five turns, begun together, with room for all in the cache and slots for three."""
    machine = Machine(1024, 16, max_running=3, policy=policy)
    logs = [prompt(60, number) for number in range(12)]
    turns = dict.fromkeys(range(12), 0)
    running = {machine.add(log, 12, program=number + 1): number for number, log in enumerate(logs)}
    waits = []
    while running:
        machine.step()
        for sequence in [sequence for sequence in running if sequence in machine.ends]:
            number = running.pop(sequence)
            waits.append(sequence.first_scheduled_s - sequence.arrival_s)
            turns[number] += 1
            if turns[number] < 5:
                again = [*sequence.token_ids, *prompt(10, 100 + number)]
                running[machine.add(again, 12, program=number + 1)] = number
    return max(waits)


def test_new_programs_do_not_wait_for_old_ones_while_nothing_is_lost() -> None:
    assert longest_wait("lpm") > 2.0 * longest_wait("dlpm")
    assert longest_wait("dlpm") < 1.2 * longest_wait("fcfs")


def fork(machine: Machine, program: int, width: int) -> list[Any]:
    trunk = prompt(48, program)
    machine.add(trunk, 1, program=program)
    machine.run_all()
    return [machine.add([*trunk, branch, program], 6, program=program) for branch in range(width)]


def test_branches_of_a_fork_run_in_the_same_steps_where_slots_allow() -> None:
    machine = Machine(512, 16, max_running=4)
    forks = [fork(machine, program, 0) for program in (1, 2)]
    for branch in range(4):  # the branches of both arrive alternately
        for program, branches in zip((1, 2), forks, strict=True):
            branches.append(machine.add([*prompt(48, program), branch, program], 6, program=program))
    machine.run_all()
    for branches in forks:
        assert len({machine.token_times[branch][0] for branch in branches}) == 1
        assert len({machine.ends[branch] for branch in branches}) == 1


def test_a_wide_fork_runs_in_waves() -> None:
    machine = Machine(512, 16, max_running=4)
    branches = fork(machine, 1, 12)
    machine.run_all()
    firsts = [machine.token_times[branch][0] for branch in branches]
    assert firsts == sorted(firsts)
    assert len(set(firsts)) == 3


def test_a_cancelled_branch_is_evictable_at_once() -> None:
    machine = Machine(64, 16)
    branches = fork(machine, 1, 4)
    machine.step()
    for branch in branches[1:]:
        machine.scheduler.cancel(branch)
    assert machine.pool.num_locked <= machine.pool.pages_for(branches[0].num_tokens) + 1
    machine.run_all()
    machine.check_idle()


# ---- cost --------------------------------------------------------------------------------------------------------


def calls_of_a_decision(num_tenants: int, each: int) -> int:
    """Python function calls that one decision takes while so much waits and the slots are full."""
    machine = Machine(4096, 16, max_running=8)
    for number in range(num_tenants * each):
        machine.add(prompt(20, number % 50), 100, tenant=str(number % num_tenants), program=number + 1)
    for _ in range(10):
        machine.step()
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        machine.scheduler.schedule()
    finally:
        sys.setprofile(None)
    return count


def test_a_decision_does_not_look_at_all_that_wait() -> None:
    assert calls_of_a_decision(1000, 1) <= 1.5 * calls_of_a_decision(100, 1)
    assert calls_of_a_decision(4, 500) <= 1.5 * calls_of_a_decision(4, 50)
