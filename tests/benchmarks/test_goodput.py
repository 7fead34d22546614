"""Goodput over rates: what an engine's figure is, and how servers are compared."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from benchmarks import goodput, peers
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.measure import Plan
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def test_an_engines_figure_is_its_best_rate_and_ratios_are_of_those() -> None:
    ours = {0.5: (2.0, 1.0), 1.0: (3.0, 0.8), 2.0: (0.5, 0.1)}
    other = {0.5: (1.5, 0.9), 1.0: (0.2, 0.1)}
    assert goodput.best(ours) == 3.0
    shown = goodput.table([0.5, 1.0, 2.0], {"RadixServe": ours, "other": other, "dead": {0.5: (0.0, 0.0)}})
    rows = [[str(cell) for cell in column.cells] for column in shown.columns]
    assert rows[-1] == ["1.00", "2.00", "-"]
    assert rows[3] == ["0.50 (10%)", "-", "-"]
    assert goodput.best({}) == 0.0


def test_rates_are_positive() -> None:
    with pytest.raises(Exception, match="positive"):
        goodput._rates("1,0")


@pytest.mark.slow
def test_every_rate_is_measured(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "tiny")
    plan = Plan([WORKLOADS["poisson"]], {"requests": 3, "turns": 2, "shared_tokens": 64}, rates=(20.0, 40.0))
    with peers.served(str(model), ["threads=1", "dtype=float32"]) as (url, _):
        report = asyncio.run(goodput.sweep(url, plan, lambda text: None))
    assert [row.num_errors for row in report.rows] == [0, 0]
    assert set(goodput.by_rate(report)) == {20.0, 40.0}
