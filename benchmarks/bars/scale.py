"""Scale: 1 to 64 requests at a time, medians of five passes; and what an engine without work costs.

Bars: throughput at 64 >= at 16; idle CPU < 1 % of a core, all processes together.
"""

from __future__ import annotations

import asyncio
import time

import psutil

import radixserve as rs
from benchmarks.load import settled_stats
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.measure import Plan, Report, measure
from radixserve.bench.over_socket import SocketTarget
from radixserve.bench.report import median, settings

AT_A_TIME = (1, 4, 16, 64)
PASSES, IDLE_S = 5, 20.0


def _idle_share(engine: rs.Engine) -> float:
    """CPU seconds of the engine's processes by seconds of doing nothing."""
    settled_stats(engine.client)
    processes = [psutil.Process(pid) for pid in engine.supervisor.pids.values()]

    def cpu_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before, began = cpu_s(), time.monotonic()
    time.sleep(IDLE_S)
    return (cpu_s() - before) / (time.monotonic() - began)


async def _sweep(address: str, passes: int) -> Report:
    target = await SocketTarget.open(address)
    try:
        sizes = {"requests": 64, "prompt_tokens": 128, "output_tokens": 32}
        return await measure(target, Plan([WORKLOADS["batch"]], sizes, AT_A_TIME, repeats=passes, seed="scale"))
    finally:
        await target.close()


def main(passes: int = PASSES) -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    with rs.Engine() as engine:
        report = asyncio.run(_sweep(engine.url, passes))
        idle = _idle_share(engine)
    speeds = {rows[0].concurrency: median(rows, "tokens_per_s") or 0.0 for rows in settings(report.rows)}
    errors = sum(row.num_errors for row in report.rows)
    shown = ", ".join(f"{count}: {speed:.0f}" for count, speed in speeds.items())
    return [
        (
            "scale: tokens/s by requests at a time",
            f"{shown} ({errors} errors)",
            "at 64 >= at 16",
            speeds[64] >= speeds[16] and not errors,
        ),
        ("scale: CPU of an idle engine", f"{idle:.2%} of a core", "< 1 %", idle < 0.01),
    ]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
