"""What the simulator counts: capacity, gaps, ageing, series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.simulator.cost import PRESETS, StepCost, capacity_of
from benchmarks.simulator.gap import GapTracker
from benchmarks.simulator.scaling import TraceOptions
from benchmarks.simulator.series import Series
from benchmarks.simulator.traces import open_trace
from benchmarks.simulator.waits import AgeingCheck
from radixserve_runtime.scheduler.plan import Chunk, StepPlan
from radixserve_runtime.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from pathlib import Path


def test_capacity_is_the_machine_time_of_the_mean_session(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,100,11\n")
    capacity = capacity_of(
        open_trace(path, TraceOptions()), StepCost(1.0, 0.1, 0.0), max_running=5, max_batch_tokens=50, kv_tokens=10_000
    )
    # 10 decode steps shared by 5 and two steps of prefill, and 110 tokens.
    assert 1 / capacity.requests_per_s == pytest.approx(10 / 5 + 2 + 11)


def test_a_decode_step_of_sixteen_takes_what_was_measured() -> None:
    cost = PRESETS["cpu"]
    assert cost.base_s + 16 * cost.token_s == pytest.approx(18e-3)


def test_the_gap_is_the_range_of_the_difference_while_both_wait() -> None:
    gap = GapTracker([1.0, 2.0, 1.0])
    gap.charge({0: 100.0})
    gap.set_backlogged((0, 1), True)
    assert gap.num_backlogged == 2
    gap.charge({0: 5.0, 1: 2.0})  # 0 is ahead by 4
    gap.charge({1: 20.0})  # 0 is behind by 6
    assert (gap.largest, set(gap.pair)) == (10.0, {0, 1})
    gap.charge({2: 1000.0})  # has nothing waiting
    gap.set_backlogged((1,), False)
    gap.charge({0: 1000.0})  # alone
    gap.set_backlogged((1,), True)
    gap.charge({0: 9.0})
    assert gap.largest == 10.0
    gap.charge({0: 2.0})
    assert gap.largest == 11.0


def test_ageing_is_checked_against_its_promise() -> None:
    evicted = [0]
    check = AgeingCheck(10.0, True, lambda: evicted[0])
    waiting = [Sequence(number, [1] * 100, 100, 1, tenant="a") for number in range(30)]
    for number, sequence in enumerate(waiting):
        check.added(sequence, number / 10)

    def start(time_s: float, *numbers: int, preempted: tuple[Sequence, ...] = ()) -> tuple[int, int]:
        chunks = tuple(Chunk(waiting[number], 40, 10) for number in numbers)
        check.stepped(StepPlan(chunks, (), preempted), [chunk.sequence for chunk in chunks], time_s)
        return check.num_overdue, check.num_late

    assert start(5.0, 10, 11, 12, 13) == (0, 0)
    assert start(20.0, 0) == (1, 0)
    assert start(20.0, 16, 17, 18, 1) == (5, 0)  # the fourth: as promised
    assert start(21.0, 2, 5, 6, 7) == (9, 0)
    assert start(21.0, 8) == (10, 1)  # 3 was due
    assert start(22.0, 3, preempted=(waiting[2],)) == (11, 1)  # who lost its slot now waits behind the others
    evicted[0] = 1
    assert start(22.0, 4) == (12, 1)
    assert start(23.0, *range(19, 30)) == (23, 1)  # what 4 had to compute, 60 tokens, is not a quarter yet
    assert start(23.0, 14) == (24, 1)


def test_series_merge_when_time_goes_on() -> None:
    series = Series(2, width_s=1.0, max_stretches=4)
    for second in range(10):
        series.add(second + 0.5, second % 2, 1.0)
    assert series.width_s == 4.0
    assert series.sums == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
