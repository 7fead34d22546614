"""Whose grammar is compiled next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixserve_tokenizer.grammar.prepare import Prepared
from radixserve_tokenizer.grammar.queue import FairQueue, Job

PREPARED = Prepared(kind="ebnf", source="", key="")


def job(number: int, tenant: str) -> Job:
    return Job(number, tenant, f"{tenant}{number}", PREPARED)


def run(queue: FairQueue, costs: dict[str, float], count: int) -> list[str]:
    """Tenants in the order in which `count` jobs are done, each job at its tenant's cost."""
    order: list[str] = []
    for _ in range(count):
        found = queue.pop()
        assert found is not None
        order.append(found.tenant)
        queue.charge(found.tenant, costs[found.tenant])
    return order


def test_equal_jobs_alternate() -> None:
    queue = FairQueue()
    for tenant in "aabb":
        for number in range(2):
            queue.push(job(number, tenant))
    assert run(queue, {"a": 1.0, "b": 1.0}, 4) == ["a", "b", "a", "b"]
    assert queue.pop() is None


def test_who_comes_later_waits_for_one_job_and_not_for_the_row() -> None:
    queue = FairQueue()
    for number in range(100):
        queue.push(job(number, "slow"))
    first = queue.pop()
    assert first is not None
    for number in range(10):
        queue.push(job(number, "quick"))
    queue.charge("slow", 5.0)
    assert run(queue, {"slow": 5.0, "quick": 0.01}, 10) == ["quick"] * 10


def test_nobody_saves_time_up() -> None:
    queue = FairQueue()
    queue.push(job(0, "idle"))
    run(queue, {"idle": 0.01}, 1)
    for number in range(100):
        queue.push(job(number, "busy"))
    run(queue, {"busy": 1.0}, 50)
    for number in range(100):
        queue.push(job(number, "idle"))
    order = run(queue, {"busy": 1.0, "idle": 1.0}, 40)
    assert 18 <= order.count("busy") <= 22


def test_order_within_a_tenant_and_removal() -> None:
    queue = FairQueue()
    jobs = [job(number, "a") for number in range(3)]
    for one in jobs:
        queue.push(one)
    queue.remove(jobs[0])
    assert len(queue) == 2
    assert [queue.pop(), queue.pop(), queue.pop()] == [jobs[1], jobs[2], None]


def test_who_gives_way() -> None:
    queue = FairQueue()
    assert queue.to_give_way("a") is None
    for number in range(3):
        queue.push(job(number, "a"))
    assert queue.to_give_way("a") is None
    last = queue.to_give_way("b")
    assert last is not None
    assert last.number == 2
    queue.push(job(0, "b"))
    queue.push(job(1, "b"))
    assert queue.to_give_way("b") is None, "they would have the same then"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.001, 5.0)), min_size=1, max_size=60))
def test_whoever_waits_is_never_far_behind(jobs: list[tuple[str, float]]) -> None:
    queue = FairQueue()
    costs: dict[int, float] = {}
    for number, (tenant, cost) in enumerate(jobs):
        costs[number] = cost
        queue.push(job(number, tenant))
    used = dict.fromkeys("abc", 0.0)
    left = {tenant: sum(one == tenant for one, _ in jobs) for tenant in "abc"}
    while (found := queue.pop()) is not None:
        waiting = [tenant for tenant in "abc" if left[tenant]]
        assert used[found.tenant] <= min(used[tenant] for tenant in waiting) + 1e-6
        left[found.tenant] -= 1
        used[found.tenant] += costs[found.number]
        queue.charge(found.tenant, costs[found.number])
    assert len(queue) == 0
