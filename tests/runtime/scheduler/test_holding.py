"""Newcomers wait for programs that have promised to come back, and no longer than that is worth; forks keep their turn."""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_runtime.scheduler.waiting import OVERDUE_EVERY
from tests.runtime.scheduler.harness import Machine, prompt

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.sequence import Sequence

A, B = (("tenant", "a"),), (("tenant", "b"),)


class Programs:
    """Programs of tenant a, begun together: a prompt, then turns with pauses under a lease. `leases`: or without."""

    def __init__(self, machine: Machine, count: int, turns: int, length: int, pause_s: float, leases: bool = True) -> None:
        self.machine = machine
        self.turns, self.pause_s, self.leases = turns, pause_s, leases
        self.logs = [prompt(length, number) for number in range(count)]
        self.due = [(machine.now_s, number, 0) for number in range(count)]
        self.running: dict[Any, tuple[int, int]] = {}

    def run(self) -> None:
        machine = self.machine
        while self.due or self.running:
            machine.cache.leases.expire(machine.now_s)
            while self.due and self.due[0][0] <= machine.now_s:
                _, number, turn = heapq.heappop(self.due)
                sequence = machine.add(self.logs[number], 6, tenant="a", namespace=A, program=number + 1)
                self.running[sequence] = (number, turn)
            if machine.step() is None:
                times = [due[0] for due in self.due[:1]] + [machine.scheduler.next_deadline_s or 1e9]
                assert min(times) > machine.now_s, "stalled"
                machine.now_s = min(times)
            for sequence in [sequence for sequence in self.running if sequence in machine.ends]:
                self.ended(sequence, *self.running.pop(sequence))

    def ended(self, sequence: Sequence, number: int, turn: int) -> None:
        machine = self.machine
        machine.cache.leases.release(number)
        if turn + 1 < self.turns:
            if self.leases:
                machine.cache.leases.take(number, A, sequence.token_ids, machine.now_s + 60.0)
            self.logs[number] = [*sequence.token_ids, *prompt(10, 100 * number + turn)]
            heapq.heappush(self.due, (machine.now_s + self.pause_s, number, turn + 1))


def computed(leases: bool, pause_s: float = 0.1) -> tuple[int, float]:
    """Prompt tokens, and seconds that it took."""
    machine = Machine(num_pages=64, page_size=16, max_running=16, max_batch_tokens=256)
    began_s = machine.now_s
    Programs(machine, count=12, turns=4, length=200, pause_s=pause_s, leases=leases).run()
    machine.check_idle()
    return machine.scheduler.counters.num_prompt_tokens_computed, machine.now_s - began_s


NEEDED = 12 * (200 + 3 * 11)


def test_in_a_pool_for_a_quarter_of_them_programs_are_computed_once_if_their_pauses_are_short() -> None:
    without, with_leases = computed(False), computed(True)
    assert without[0] > 1.6 * NEEDED
    assert with_leases[0] < 1.1 * NEEDED
    assert with_leases[1] < without[1]


@pytest.mark.parametrize("pause_s", [1.0, 5.0])
def test_pauses_that_are_longer_than_a_prefill_are_filled_with_newcomers(pause_s: float) -> None:
    """To keep no more alive than the three that fit would let the engine stand still: what is computed again costs less than that."""
    seconds = computed(True, pause_s)[1]
    assert seconds < 1.05 * computed(False, pause_s)[1]
    assert seconds < 0.8 * (12 / 3 * 3 * pause_s)


# ---- no longer than it is worth -----------------------------------------------------------------------------------


def leased_pool(**config: Any) -> Machine:
    """All of the pool but some pages is leased by programs of tenant a that don't come back."""
    machine = Machine(num_pages=64, page_size=16, max_running=4, max_batch_tokens=256, growth_tokens=1, **config)
    for number in range(4):
        sequence = machine.add(prompt(220, number), 2, tenant="a", namespace=A, program=number + 1)
        machine.run_all()
        machine.cache.leases.take(number, A, sequence.token_ids, machine.now_s + 3600.0)
    return machine


def newcomer(machine: Machine, number: int, tenant: str = "a", **fields: Any) -> Sequence:
    namespace = (("tenant", tenant),)
    return machine.add(prompt(220, 50 + number), 2, tenant=tenant, namespace=namespace, program=50 + number, **fields)


def wait_of(machine: Machine, sequence: Sequence) -> float:
    while sequence.first_scheduled_s < 0:
        if machine.step() is None:
            assert machine.scheduler.next_deadline_s is not None, "stalled"
            machine.now_s = max(machine.now_s, machine.scheduler.next_deadline_s)
    return sequence.first_scheduled_s - sequence.arrival_s


def test_an_engine_without_work_waits_for_less_time_than_it_would_work() -> None:
    """And leases that nobody comes back to hold up the first alone."""
    machine = leased_pool()
    waits = []
    for number in range(8):
        sequence = newcomer(machine, number)
        waits.append(wait_of(machine, sequence))
        machine.run_all()
        machine.cache.leases.take(100 + number, A, sequence.token_ids, machine.now_s + 3600.0)
    most_s = 0.75 * machine.scheduler.cost.prefill_cost(0, 220)
    assert 0.5 * most_s < sum(waits) <= 1.05 * most_s
    assert max(waits[1:]) < 0.02 * most_s


def test_nobody_is_waited_for_beyond_two_usual_pauses() -> None:
    machine = leased_pool()
    pause_s = 0.02
    machine.scheduler._accounts.enter("a").patience.came_back(pause_s)
    machine.now_s += 1.0
    assert 2.5 * pause_s < 0.75 * machine.scheduler.cost.prefill_cost(0, 220)
    assert 1.5 * pause_s < wait_of(machine, newcomer(machine, 0)) < 2.5 * pause_s
    machine.run_all()


def test_newcomers_that_are_overdue_wait_as_well() -> None:
    """Or each of them would break a lease, where all that come have to wait for long."""
    machine = leased_pool(ageing_s=0.5)
    machine.add(prompt(20, 99), 300, tenant="a", namespace=A)
    machine.step()
    waits = [newcomer(machine, number) for number in range(3)]
    for sequence in waits:
        wait_of(machine, sequence)
        machine.cache.leases.take(sequence, A, sequence.token_ids[:220], machine.now_s + 3600.0)
    starts = [sequence.first_scheduled_s - waits[0].arrival_s for sequence in waits]
    assert 0.45 < starts[0] <= 0.7
    assert starts[1] - starts[0] > 0.2  # half of the patience after a wait in vain
    machine.run_all()


def test_beside_others_a_newcomer_waits_for_the_ageing_time_at_most() -> None:
    machine = leased_pool(ageing_s=1.0)
    machine.add(prompt(20, 99), 300, tenant="a", namespace=A)
    machine.step()
    assert 0.5 < wait_of(machine, newcomer(machine, 0)) <= 1.1
    machine.run_all()


@pytest.mark.parametrize("fields", [{"priority": "interactive"}, {"tenant": "b"}])
def test_neither_the_interactive_class_nor_other_tenants_wait(fields: dict[str, Any]) -> None:
    machine = leased_pool()
    assert wait_of(machine, newcomer(machine, 0, **fields)) == 0.0
    machine.run_all()


def test_where_there_is_room_beside_the_leases_nobody_waits() -> None:
    machine = leased_pool()
    machine.cache.leases.release(0)
    assert wait_of(machine, newcomer(machine, 0)) == 0.0
    machine.run_all()
    assert all(key in machine.cache.leases for key in (1, 2, 3))


def test_room_is_left_for_those_at_work_to_grow() -> None:
    machine = leased_pool()
    machine.cache.leases.release(0)
    machine.scheduler._accounts.enter("a").growth_tokens = 32.0
    assert wait_of(machine, newcomer(machine, 0)) > 0.0
    machine.run_all()


def test_who_comes_back_goes_before_newcomers_and_makes_them_patient_again() -> None:
    machine = leased_pool()
    for number in range(4):
        wait_of(machine, newcomer(machine, number))
        machine.run_all()
    back = machine.add([*prompt(220, 0), 7], 2, tenant="a", namespace=A, program=1)
    machine.run_all()
    machine.cache.leases.take(0, A, back.token_ids, machine.now_s + 3600.0)
    held = [newcomer(machine, 20 + number) for number in range(3)]
    for number in range(3):
        machine.cache.leases.take(30 + number, A, held[number].token_ids, machine.now_s + 3600.0)
    again = machine.add([*back.token_ids, 8], 2, tenant="a", namespace=A, program=1)
    machine.run_all()
    assert machine.order.index(again) < min(machine.order.index(sequence) for sequence in held)


def test_the_promise_of_ageing_holds_where_everything_is_leased() -> None:
    """Who is overdue when n others are is admitted with one of the next 4 (n + 1) admissions, and 4 times the work of the n."""
    machine = Machine(num_pages=64, page_size=16, max_running=4, max_batch_tokens=256, ageing_s=0.5)
    programs = Programs(machine, count=10, turns=8, length=200, pause_s=0.1)
    programs.run()
    admissions = sorted(machine.ends, key=lambda sequence: sequence.first_scheduled_s)
    firsts = [place for place, sequence in enumerate(admissions) if sequence.num_prompt_tokens == 200]
    assert len(firsts) == 10
    for first, second in pairwise(firsts):
        between = admissions[first + 1 : second]
        work = sum(sequence.num_tokens - sequence.num_cached_tokens for sequence in between)
        assert len(between) < OVERDUE_EVERY or work <= OVERDUE_EVERY * 206 + 206, "somebody starved"


# ---- what waits ---------------------------------------------------------------------------------------------------


def test_a_leased_context_that_somebody_came_back_to_is_kept_until_they_start() -> None:
    """Also by a fork of the branch that took the lease, whatever becomes of that."""
    machine = Machine(num_pages=64, page_size=16, max_running=1, max_batch_tokens=64)
    mine = machine.add(prompt(300, 1), 2, tenant="a", namespace=A, program=1)
    machine.run_all()
    newer = machine.add(prompt(300, 2), 2, tenant="b", namespace=B, program=2)
    machine.run_all()
    running = machine.add(prompt(520, 3), 40, tenant="b", namespace=B)
    machine.step()
    machine.cache.leases.take(1, A, mine.token_ids, machine.now_s + 60.0)
    back = machine.add([*mine.token_ids, 5], 2, tenant="a", namespace=A, program=1)
    machine.cache.leases.release(1)
    machine.run_all()
    assert running in machine.ends
    assert back.num_cached_tokens == 301
    assert machine.cache.match(B, newer.token_ids).num_tokens < 301
    machine.check_idle()


# ---- forks --------------------------------------------------------------------------------------------------------


def test_branches_that_wait_for_their_first_keep_their_turn() -> None:
    """Their program's level rises while the first computes what they share; that doesn't put them behind newcomers."""
    machine = Machine(num_pages=256, page_size=16, max_running=8, max_batch_tokens=64, level_unit=64.0)
    branches = [machine.add([*prompt(200, 0), number], 4, program=1) for number in range(3)]
    machine.step()
    others = [machine.add(prompt(200, 10 + number), 4, program=10 + number) for number in range(6)]
    machine.run_all()
    assert max(sequence.first_scheduled_s for sequence in branches) <= min(other.first_scheduled_s for other in others)


def test_no_more_branches_keep_their_turn_than_there_are_slots() -> None:
    machine = Machine(num_pages=256, page_size=16, max_running=3, max_batch_tokens=64, level_unit=64.0)
    branches = [machine.add([*prompt(200, 0), number], 30, program=1) for number in range(12)]
    machine.step()
    other = machine.add(prompt(40, 10), 4, program=10)
    machine.run_all()
    started = sorted(branches, key=lambda sequence: sequence.first_scheduled_s)
    assert other.first_scheduled_s <= started[5].first_scheduled_s
