"""The bench against a live engine: over HTTP and over its socket the counts agree, and nothing fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import radixserve as rs
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.measure import Plan, Report, measure
from radixserve.bench.over_http import HttpTarget
from radixserve.bench.over_socket import SocketTarget
from tests.integration.conftest import serving

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.bench.ask import Target

FLAGS = {"dtype": "float32", "threads": 1, "kv_tokens": 16_384, "log_level": "error"}


async def _measure(target: Target, *names: str) -> Report:
    try:
        sizes = {"requests": 4, "output_tokens": 6}
        return await measure(target, Plan([WORKLOADS[name] for name in names], sizes, warmup=False, seed="live"))
    finally:
        await target.close()


def _check(report: Report) -> None:
    for row in report.rows:
        assert row.num_errors == 0, row.errors
        assert row.output_tokens == row.output_tokens_asked
        assert row.hit_rate is not None
    assert report.warnings == []
    batch, agents = report.rows[0], report.rows[1]
    assert batch.prompt_tokens == 4 * 128  # exactly as asked, by whatever counted them
    assert agents.hit_rate is not None
    assert agents.hit_rate > 0.5


def test_over_http(tiny_model: Path) -> None:
    flags = [part for name, value in FLAGS.items() for part in (f"--{name.replace('_', '-')}", str(value))]

    async def run(url: str) -> Report:
        return await _measure(await HttpTarget.open(url), "batch", "agents")

    with serving(str(tiny_model), *flags) as server:
        report = asyncio.run(run(server.url))
    _check(report)


def test_over_the_socket(tiny_model: Path) -> None:
    async def run(url: str) -> Report:
        return await _measure(await SocketTarget.open(url), "batch", "agents", "tree", "forks")

    with rs.Engine(str(tiny_model), **FLAGS) as engine:
        report = asyncio.run(run(engine.url))
    _check(report)
    assert [row.part for row in report.rows] == ["", "", "", "requests", "n"]
    requests, choices = report.rows[3:]
    assert requests.output_tokens == choices.output_tokens
