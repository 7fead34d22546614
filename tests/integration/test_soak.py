"""A short soak: random requests of every kind, all answered once, and books that balance (see benchmarks/soak.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.soak import soak

if TYPE_CHECKING:
    from pathlib import Path


def test_random_requests_are_all_answered_and_leave_nothing_behind(tiny_model: Path) -> None:
    report = soak(str(tiny_model), 300, seed=7)
    assert report.problems == []
    assert sum(report.outcomes.values()) == 300
    assert len(report.outcomes) >= 7
