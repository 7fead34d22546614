"""What docs/fairness.md promises between tenants where pages are what is scarce."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.scheduler.sequence import Status
from tests.runtime.scheduler.harness import Load, Machine, Quick, prompt

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence


class Conversations(Load):
    """Each program's next prompt is all that it had so far and something new, as long as it fits `most_context` tokens."""

    def __init__(
        self,
        machine: Machine,
        shapes: dict[str, tuple[int, int]],
        most_context: int,
        programs: int,
        seed: int,
        lessees: str = "",
    ) -> None:
        super().__init__(machine, shapes, seed)
        self.lessees = lessees
        self.num_leased = 0
        self.most_context = most_context
        self.programs = programs
        self.open: dict[tuple[str, int], Sequence] = {}

    def send(self, tenant: str, **fields: Any) -> Sequence:
        self.number += 1
        slot = (tenant, self.number % self.programs)
        before = self.open.get(slot)
        most_prompt, most_output = self.shapes[tenant]
        new = prompt(self.source.randint(1, most_prompt), self.number)
        if before is None or before not in self.machine.ends or before.num_tokens + len(new) + most_output > self.most_context:
            tokens, program = new, self.number
        else:
            tokens, program = [*before.token_ids, *new], before.program
        count = self.source.randint(1, most_output)
        sequence = self.machine.add(tokens, count, tenant=tenant, namespace=(("tenant", tenant),), program=program)
        self.open[slot] = sequence
        return sequence

    def keep(self, depth: int, *tenants: str) -> None:
        for tenant in tenants:
            for _ in range(self.waiting(tenant), depth):
                self.send(tenant)

    def step(self) -> StepPlan | None:
        plan = super().step()
        for sequence in self.machine.order[self.num_leased :]:
            if sequence.tenant in self.lessees:
                self.machine.cache.leases.take(sequence.program, sequence.namespace, sequence.token_ids, 1e9)
        self.num_leased = len(self.machine.order)
        return plan

    def is_backlogged(self, tenant: str) -> bool:
        """Whether anything of it waits for others, and not only for its own leases."""
        scheduler = self.machine.scheduler
        return any(
            sequence.tenant == tenant and not scheduler._admission.waits_for_leases(sequence)
            for sequence in scheduler._state.tracked
            if sequence.status is Status.WAITING
        )

    def left(self, tenant: str) -> float:
        """The most that its running sequences can still be charged."""
        context = self.most_context / 1000
        return sum(
            sequence.num_uncomputed + (2 + context) * (sequence.max_tokens - sequence.num_output_tokens + 1) + context
            for sequence in self.machine.scheduler._state.running
            if sequence.tenant == tenant
        )


SMALL = st.tuples(st.integers(1, 60), st.integers(1, 30))


@pytest.mark.timeout(280)
@settings(max_examples=60, deadline=None)
@given(
    shapes=st.fixed_dictionaries({"a": SMALL, "b": SMALL}),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
    policy=st.sampled_from(["dlpm", "vtc"]),
    num_pages=st.sampled_from([24, 48, 96]),
    max_running=st.sampled_from([2, 5, 16]),
    programs=st.integers(2, 12),
    lessees=st.sampled_from(["", "a", "ab"]),
    depth=st.integers(2, 6),
    seed=st.integers(0, 1000),
)
def test_the_gap_is_bounded_where_pages_are_scarce(
    shapes: dict[str, tuple[int, int]],
    weight: float,
    policy: str,
    num_pages: int,
    max_running: int,
    programs: int,
    lessees: str,
    depth: int,
    seed: int,
) -> None:
    """As above, with the terms that are added there: lost contexts, what has to be computed again, and what still runs.

    `lessees` lease all that they have computed, for ever.
    """
    weights, quantum, context = {"a": weight, "b": 1.0}, 32.0, 16 * num_pages // 2
    machine = Quick(
        num_pages,
        16,
        tenants=weights,
        policy=policy,
        quantum=quantum,
        max_running=max_running,
        max_batch_tokens=64,
        min_chunk_tokens=8,
    )
    load = Conversations(machine, shapes, context, programs, seed, lessees)
    load.keep(depth, "b")
    for _ in range(load.source.randint(0, 60)):
        load.step()
        load.keep(depth, "b")
    load.keep(depth, "a", "b")
    gap, largest, gaps = 0.0, dict.fromkeys(weights, 0.0), [0.0]
    left = {tenant: load.left(tenant) for tenant in weights}
    for _ in range(200):
        load.keep(depth, "a", "b")
        last = load.charges()
        load.step()
        left = {tenant: max(most, load.left(tenant)) for tenant, most in left.items()}
        shares = {name: (charge - last.get(name, 0.0)) / weights[name] for name, charge in load.charges().items()}
        largest = {tenant: max(most, shares.get(tenant, 0.0)) for tenant, most in largest.items()}
        gap += shares["a"] - shares["b"]
        gaps.append(gap)
        lost = 2 * context * (1 / weight + 1) if policy == "dlpm" else 0.0
        again = sum(context / weights[tenant] + largest[tenant] for tenant in weights)
        running = sum(left[tenant] / weights[tenant] for tenant in weights)
        assert max(gaps) - min(gaps) <= 4 * quantum + sum(largest.values()) + lost + again + running
        if not load.is_backlogged("a") or not load.is_backlogged("b"):
            gaps = [gap]


def turns(num_pages: int, switch_cost: float) -> tuple[int, int]:
    """Two tenants with a program each, whose contexts fit the pool one at a time: tokens that were computed, and how often the turn changed."""
    machine = Quick(num_pages, 16, quantum=64.0, max_running=1)
    machine.scheduler._selection._policy.switch_cost = switch_cost  # type: ignore[misc]
    logs, waiting, order = {"a": prompt(500, 1), "b": prompt(500, 2)}, dict[str, Any](), list[str]()
    for number in range(240):
        for tenant in logs.keys() - waiting.keys():
            tokens = [*logs[tenant], *prompt(10, 10 + number)]
            waiting[tenant] = machine.add(tokens, 3, tenant=tenant, namespace=(("tenant", tenant),), program=ord(tenant))
        while not waiting.keys() & {sequence.tenant for sequence in machine.ends}:
            machine.step()
        [(sequence, _)] = machine.ends.items()
        machine.ends.clear()
        order.append(sequence.tenant)
        del waiting[sequence.tenant]
    machine.run_all()
    changes = sum(first != second for first, second in itertools.pairwise(order))
    return machine.scheduler.counters.num_batched_tokens, changes


def test_a_turn_is_long_enough_for_the_context_that_it_computes_again() -> None:
    plenty, often = turns(400, 2.0)
    greedy, _ = turns(40, 0.0)
    scarce, seldom = turns(40, 2.0)
    assert greedy > 1.5 * scarce
    assert seldom < often
    assert seldom >= 3, "both must have turns"
    assert scarce > plenty


def test_while_pages_are_plenty_nothing_counts_as_lost() -> None:
    machine = Quick(4096, 16, max_running=2)
    load = Conversations(machine, {"a": (40, 10), "b": (40, 10)}, 400, 6, 1)
    for _ in range(200):
        load.keep(4, "a", "b")
        load.step()
        assert not any(tracked.num_lost_tokens for tracked in machine.scheduler._state.tracked.values())


def test_what_is_warm_goes_first_once_contexts_were_lost() -> None:
    """Few programs are kept alive, rather than all of them losing their contexts in turn: also where their levels differ."""
    machine = Quick(40, 16, max_running=1, level_unit=32.0)
    old = [machine.add(prompt(300, number), 1, program=1 + number) for number in range(3)]
    machine.run_all()
    lost, warm = ([*sequence.token_ids, 1] for sequence in (old[0], old[2]))
    young = machine.add(prompt(200, 9), 1, program=9)
    again = machine.add(lost, 1, program=1)
    goes_on = machine.add(warm, 1, program=3)
    machine.run_all()
    assert machine.order[3:] == [goes_on, young, again]


def test_what_is_new_to_a_program_is_not_lost() -> None:
    """Also while the cache evicts what others had, and where a context agrees with an earlier one in part only."""
    machine = Quick(40, 16, max_running=1)

    def lost(tokens: list[int], program: int) -> int:
        tracked = machine.scheduler._state.tracked[machine.add(tokens, 1, program=program)]
        machine.run_all()
        return tracked.num_lost_tokens

    first = prompt(320, 0)
    assert lost(first, 1) == 0
    assert [lost(prompt(300, number), 2) for number in range(1, 4)] == [0, 0, 0]
    assert machine.cache.num_evicted_pages > 0
    assert lost(prompt(300, 9), 1) == 0, "another context of the same program"
    assert 200 <= lost([*first[:290], *prompt(30, 10)], 1) <= 290
