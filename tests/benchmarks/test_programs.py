"""The programs that are written twice do the same, and the benchmarks over them measure both."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

import pytest

from benchmarks import overhead_cpu, programs
from benchmarks.written_twice.work import PROGRAMS, best, winner
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


def test_votes_and_marks_do_not_depend_on_who_came_first() -> None:
    assert winner([3, 1, 1, 3, 2]) == 1
    assert best([4, 9, 4, 9], 3) == [1, 3, 0]


def compared(model: Path, regime: str, names: Sequence[str]) -> list[programs.Measured]:
    options = argparse.Namespace(
        model=str(model),
        runs=2,
        concurrency=2,
        rounds=1,
        settings='{"max_running": 32}',
        sizes='{"context": 30, "output": 8, "pause_s": 0.05}',
    )
    said: list[str] = []
    rows = asyncio.run(programs.measure(regime, options, 8192, names, said.append))
    assert len(said) == 2 * len(names)
    return rows


@pytest.mark.parametrize("regime", list(programs.BARS))
def test_both_ways_give_the_same_results(model: Path, regime: str) -> None:
    # Not the tree of thought: what a random model thinks may hold U+0000, which no request may send back.
    rows = compared(model, regime, PROGRAMS[1:])
    assert [row.program for row in rows] == list(PROGRAMS[1:])
    for row in rows:
        assert (row.num_same, row.num_runs) == (2, 2), row.program
        assert row.ratio > 0
        assert min(row.computed.values()) > 100
    assert programs.show(rows).row_count == len(rows)


@pytest.mark.model
def test_both_ways_give_the_same_tree_of_thought(smollm2_path: Path) -> None:
    (row,) = compared(smollm2_path, "ample", PROGRAMS[:1])
    assert (row.num_same, row.num_runs) == (2, 2)


def test_tight_pools_are_a_quarter_of_what_the_runs_hold(model: Path) -> None:
    options = argparse.Namespace(model=str(model), concurrency=8, program=PROGRAMS[1:], sizes='{"context": 30, "output": 8}')
    pools = asyncio.run(programs.quarters(options))
    assert list(pools) == list(PROGRAMS[1:])
    assert all(8 * 100 // 4 < pool < 8 * 4000 // 4 for pool in pools.values())


def test_processor_time_of_each_way(model: Path) -> None:
    options = argparse.Namespace(model=str(model), programs=4, count=4, rounds=1)
    figures = asyncio.run(overhead_cpu.run(options))
    assert list(figures) == ["DSL", "DSL, a program each", "HTTP"]
    assert all(len(rounds) == 1 for rounds in figures.values())
    assert set(figures["HTTP"][0]) == {"client", "tokenizer", "HTTP server"}
