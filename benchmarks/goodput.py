"""Goodput: agents that arrive at random at rising rates, at our engine and at peers; requests/s that meet the service level.

    python -m benchmarks.goodput [--rates 0.5,1,1.5,2] [--setting NAME=VALUE ...] [--peer NAME=URL ...] [--json FILE] [--plot DIRECTORY]

Agents of four turns over one preamble of 768 tokens (the workload `poisson` of `radixserve bench`). A request counts when its first
text came within `--ttft-limit-s` and its later tokens took at most `--itl-limit-s` on average. An engine's figure is its best over
the rates: beyond what it can carry, requests that come too late make all of them late. Every server sees the same texts and arrivals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.peers import served
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.measure import Plan, Watcher, measure
from radixserve.bench.over_http import HttpTarget
from radixserve.bench.plots import draw, require
from radixserve.bench.report import as_json, median, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from radixserve.bench.measure import Report


async def sweep(url: str, plan: Plan, say: Callable[[str], None]) -> Report:
    """All rates at one URL."""
    target = await HttpTarget.open(url)
    try:
        return await measure(target, plan, Watcher(lambda name, done, total: say(f"{done}/{total} {name}")))
    finally:
        await target.close()


def by_rate(report: Report) -> dict[float, tuple[float, float]]:
    """Rate to (requests/s within the service level, their share of all): medians over the passes."""
    return {
        rows[0].rate: (median(rows, "goodput_requests_per_s") or 0.0, median(rows, "goodput_share") or 0.0)
        for rows in settings(report.rows)
    }


def best(rates: Mapping[float, tuple[float, float]]) -> float:
    """The most requests/s within the service level, whatever the rate."""
    return max((speed for speed, _ in rates.values()), default=0.0)


def table(rates: Sequence[float], found: Mapping[str, Mapping[float, tuple[float, float]]]) -> Table:
    """A row a server, ours first; in the last column ours over it."""
    shown = Table("server", title="requests/s within the service level (their share), by agents that arrive in a second")
    for rate in rates:
        shown.add_column(f"{rate:g}/s", justify="right")
    shown.add_column("best", justify="right")
    shown.add_column("ours over it", justify="right")
    ours = best(next(iter(found.values())))
    for name, row in found.items():
        cells = [f"{row[rate][0]:.2f} ({row[rate][1]:.0%})" if rate in row else "-" for rate in rates]
        most = best(row)
        shown.add_row(name, *cells, f"{most:.2f}", f"{ours / most:.2f}" if most else "-")
    return shown


def _rates(text: str) -> list[float]:
    rates = [float(part) for part in text.split(",")]
    if min(rates) <= 0:
        raise argparse.ArgumentTypeError("rates are positive: agents that arrive in a second")
    return rates


def main() -> int:
    """Measure; exit status 1 when a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rates", type=_rates, default=[0.5, 1.0, 1.5, 2.0], metavar="N,N,...")
    parser.add_argument("--requests", type=int, default=32, help="agents at each rate")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", default="goodput")
    parser.add_argument("--ttft-limit-s", type=float, default=2.0)
    parser.add_argument("--itl-limit-s", type=float, default=0.15)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of radixserve serve")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="a server that runs already")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, metavar="DIRECTORY", help="pictures of our sweep")
    options = parser.parse_args()
    if options.plot:
        require()
    out = Console(highlight=False, width=150)
    sizes = {name: getattr(options, name) for name in ("requests", "ttft_limit_s", "itl_limit_s")}
    plan = Plan([WORKLOADS["poisson"]], sizes, rates=options.rates, repeats=options.repeats, seed=options.seed)
    with served(options.model, options.setting) as (url, _):
        reports = {"RadixServe": asyncio.run(sweep(url, plan, out.print))}
    for peer in options.peer:
        name, _, address = peer.partition("=")
        reports[name] = asyncio.run(sweep(address, plan, out.print))
    out.print(table(options.rates, {name: by_rate(report) for name, report in reports.items()}))
    if options.json:
        options.json.write_text(json.dumps({name: as_json(report) for name, report in reports.items()}, indent=2) + "\n")
    if options.plot:
        draw(reports["RadixServe"], options.plot)
    return 1 if any(row.num_errors for row in reports["RadixServe"].rows) else 0


if __name__ == "__main__":
    sys.exit(main())
