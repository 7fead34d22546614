"""What leases are for: agents that wait for tools, beside a flood that would push their KV out. A virtual clock, no model."""

from __future__ import annotations

import heapq
import random

import pytest

from tests.runtime.scheduler.harness import Machine, prompt

NUM_AGENTS, NUM_TURNS, PAUSE_S = 5, 6, 2.0
AGENT, FLOOD = (("tenant", "agents"),), (("tenant", "flood"),)


def recomputed_tokens(with_leases: bool, num_pages: int = 128, ttl_s: float = 60.0) -> tuple[int, int]:
    """Tokens that agents had computed and compute again after their pauses; and how many leases were lost."""
    machine = Machine(num_pages=num_pages, page_size=16, max_batch_tokens=256, max_running=8, policy="fcfs")
    source, lost = random.Random(3), 0
    logs = {agent: prompt(120, agent) for agent in range(NUM_AGENTS)}
    due = [(1.0 + 0.3 * agent, agent, 0) for agent in range(NUM_AGENTS)]
    running: dict[object, tuple[int, int]] = {}
    flooding: list[object] = []
    again, seed = 0, 1000
    while due or running:
        machine.cache.leases.expire(machine.now_s)
        lost += len(machine.cache.leases.take_lost())
        while due and due[0][0] <= machine.now_s:
            _, agent, turn = heapq.heappop(due)
            sequence = machine.add(logs[agent], 8, namespace=AGENT, tenant="agents")
            running[sequence] = (agent, turn)
        flooding = [sequence for sequence in flooding if sequence not in machine.ends]
        while len(flooding) < 2:
            seed += 1
            flooding.append(machine.add(prompt(source.randrange(60, 140), seed), 4, namespace=FLOOD, tenant="flood"))
        assert machine.step() is not None
        for sequence in [sequence for sequence in running if sequence in machine.ends]:
            agent, turn = running.pop(sequence)
            known = len(logs[agent]) - 1 if turn == 0 else len(logs[agent]) - 21
            if turn:
                again += max(0, known - sequence.num_cached_tokens)  # type: ignore[attr-defined]
            if turn + 1 < NUM_TURNS:
                log = list(sequence.token_ids)  # type: ignore[attr-defined]
                if with_leases:
                    machine.cache.leases.take(agent, AGENT, log, machine.now_s + ttl_s)
                logs[agent] = log + prompt(20, 100 * agent + turn)
                heapq.heappush(due, (machine.now_s + PAUSE_S, agent, turn + 1))
    return again, lost


@pytest.mark.parametrize(("num_pages", "all_fit"), [(128, True), (72, False)])
def test_leases_at_least_halve_what_is_computed_again(num_pages: int, all_fit: bool) -> None:
    plain, _ = recomputed_tokens(False, num_pages)
    leased, lost = recomputed_tokens(True, num_pages)
    assert plain > 4000, "the flood must be one that pushes agents out"
    assert leased * 2 <= plain
    assert (lost == 0) == all_fit


@pytest.mark.parametrize("num_pages", [24, 48])
def test_leases_on_every_branch_do_not_wedge_a_pool_too_small_for_them(num_pages: int) -> None:
    leased, lost = recomputed_tokens(True, num_pages)
    plain, _ = recomputed_tokens(False, num_pages)
    assert lost > 0
    assert leased <= plain


def test_a_lease_that_is_over_protects_nothing() -> None:
    plain, _ = recomputed_tokens(False)
    leased, lost = recomputed_tokens(True, ttl_s=0.01)
    assert lost == NUM_AGENTS * (NUM_TURNS - 1)
    assert leased > plain / 2
