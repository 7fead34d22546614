"""The promise of ageing: who is overdue, with n others overdue before it, gets one of its tenant's next 4 (n + 1) admissions.

Where pages are scarce each fourth part of what the tenant is given, if that is less.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.runtime.scheduler.harness import Quick, prompt

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence

AGEING_S = 0.2
CLASSES = ("interactive", "standard", "background")


class Promise:
    """Watches from outside whether the promise is kept."""

    def __init__(self, machine: Quick, by_tenant: bool) -> None:
        self.machine = machine
        self.by_tenant = by_tenant
        self.due_s: dict[Sequence, float] = {}
        self.left: dict[Sequence, int] = {}
        """Admissions of its tenant that may pass before an overdue one has its own, the first such first."""
        self.given: dict[str, int] = {}
        """Tokens that each tenant was given."""
        self.paid_at: dict[str, int] = {}
        self.passed: dict[str, int] = {}
        self.num_kept = 0
        self.most_in_a_step = 0

    def waits(self, sequence: Sequence, now_s: float) -> None:
        self.due_s[sequence] = now_s + AGEING_S * (2 if sequence.priority == "background" else 1)

    def name(self, sequence: Sequence) -> str:
        return sequence.tenant if self.by_tenant else ""

    def line_of(self, sequence: Sequence) -> list[Sequence]:
        return [other for other in self.left if self.name(other) == self.name(sequence)]

    def stepped(self, plan: StepPlan, planned_s: float) -> None:
        for sequence, due_s in sorted(self.due_s.items(), key=lambda item: (item[1], CLASSES.index(item[0].priority))):
            if due_s <= planned_s and sequence not in self.left:
                self.left[sequence] = 4 * (len(self.line_of(sequence)) + 1)
        for sequence in plan.preempted:
            self.waits(sequence, planned_s)
        num_admitted = num_overdue = 0
        for chunk in plan.chunks:
            sequence, name = chunk.sequence, self.name(chunk.sequence)
            if sequence in self.due_s:
                num_admitted += 1
                num_overdue += sequence in self.left
                self.admitted(sequence, chunk.start)
            self.given[name] = self.given.get(name, 0) + chunk.count
        self.most_in_a_step = max(self.most_in_a_step, num_overdue if num_admitted > 1 else 0)

    def admitted(self, sequence: Sequence, start: int) -> None:
        line, name = self.line_of(sequence), self.name(sequence)
        has_evicted = self.machine.cache.num_evicted_pages > 0
        if line and line[0] is sequence:
            self.passed[name] = 0
            paid_at = self.given.get(name, 0) + (4 * (sequence.num_tokens - start) if has_evicted else 0)
            self.paid_at[name] = max(self.paid_at.get(name, 0), paid_at)
        elif line:
            is_due = self.passed.get(name, 3) >= 3 and self.given.get(name, 0) >= self.paid_at.get(name, 0)
            assert not is_due, "an overdue sequence was passed over"
            self.passed[name] = self.passed.get(name, 3) + 1
        for other in line:
            self.left[other] -= 1
            assert has_evicted or self.left[other] > 0 or other is sequence, "an overdue sequence is late"
        self.num_kept += self.left.pop(sequence, None) is not None
        del self.due_s[sequence]


def run(
    policy: str, max_running: int, num_pages: int, shared: int, seed: int, tenants: int, budget: int = 128, num_steps: int = 250
) -> Promise:
    """Everybody sends more than can be served, of all classes, some of it beginning alike."""
    source = random.Random(seed)
    machine = Quick(
        num_pages,
        16,
        policy=policy,
        max_running=max_running,
        max_batch_tokens=budget,
        ageing_s=AGEING_S,
        quantum=200.0,
        window=24,
    )
    promise = Promise(machine, policy in ("vtc", "dlpm"))
    number = 0
    for _ in range(num_steps):
        while machine.scheduler.num_waiting < 24:
            number += 1
            tenant = str(source.randrange(tenants))
            sequence = machine.add(
                [*prompt(shared, -(number // 3)), *prompt(source.randint(1, 40), number)],
                source.choice((1, 2, 12)),
                tenant=tenant,
                namespace=(("tenant", tenant),),
                program=1 + source.randrange(8),
                priority=source.choice(CLASSES),
            )
            promise.waits(sequence, machine.now_s)
        planned_s = machine.now_s
        plan = machine.step()
        if plan is None:
            machine.now_s += 0.001
        else:
            promise.stepped(plan, planned_s)
    return promise


@pytest.mark.timeout(280)
@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(["fcfs", "lpm", "vtc", "dlpm"]),
    max_running=st.sampled_from([2, 8, 24]),
    num_pages=st.sampled_from([24, 40, 8192]),
    shared=st.sampled_from([0, 60, 250]),
    seed=st.integers(0, 1000),
    tenants=st.integers(1, 3),
    budget=st.sampled_from([128, 1024]),
)
@example(policy="fcfs", max_running=24, num_pages=24, shared=60, seed=0, tenants=2, budget=1024)
def test_an_overdue_sequence_has_one_of_the_next_admissions(
    policy: str, max_running: int, num_pages: int, shared: int, seed: int, tenants: int, budget: int
) -> None:
    run(policy, max_running, num_pages, shared, seed, tenants, budget)


@pytest.mark.parametrize("policy", ["lpm", "dlpm"])
def test_a_step_of_many_admissions_has_many_overdue_ones(policy: str) -> None:
    promise = run(policy, 24, 1024, 0, 0, 1)
    assert promise.num_kept > 50
    assert promise.most_in_a_step > 1


@pytest.mark.parametrize("policy", ["fcfs", "dlpm"])
def test_nobody_takes_the_turn_of_one_that_waits_for_a_prefix(policy: str) -> None:
    machine = Quick(4096, 16, policy=policy, max_running=12, max_batch_tokens=1024, ageing_s=1.0)
    text = prompt(1100, 0)
    leader = machine.add(text, 50)
    follower = machine.add([*text, 1], 1)
    others = [machine.add(prompt(8, 1 + number), 50) for number in range(8)]
    machine.now_s += 2.0
    machine.step()
    assert leader.first_scheduled_s == machine.scheduler._state.tracked[follower].since_s + 2.0
    machine.step()  # the rest of the leader's prompt, which the follower waits for
    assert follower.first_scheduled_s < 0
    assert sum(other.first_scheduled_s > 0 for other in others) == 3
    machine.step()
    assert follower.first_scheduled_s > 0
    assert sum(other.first_scheduled_s > 0 for other in others) > 3
