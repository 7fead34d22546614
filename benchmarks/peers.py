"""The workloads of the peers' table (docs/benchmarks.md) on this engine, beside what the machine can do, as one table.

    python -m benchmarks.peers [--repeats 2] [--setting dtype=bfloat16 ...] [--peer NAME=URL ...] [--json FILE]

Starts `radixserve serve` with default settings (and what `--setting` changes), drives it over HTTP with `radixserve bench`, and then
each peer that already listens at a URL, so that a ratio comes from one run. Peers that are not here are compared by their ratio to
their own machine's limits, which stood beside their figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Limits, measure_limits
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.measure import Plan, Watcher, measure
from radixserve.bench.over_http import HttpTarget
from radixserve.bench.report import as_json, median, settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve.bench.measure import Report

NAMES = ("p0", "w1", "w2", "w3", "w4", "w5a", "w5b", "w6", "w6u")

#: Medians of the peers' figures, SmolLM2-135M on two cores: (tokens/s or prompt tokens/s, p99 TTFT in s or None). Over one machine
#: whose limits were `TABLE_LIMITS`; the same configuration varied by up to 30 % between runs.
PEERS: dict[str, dict[str, tuple[float, float | None]]] = {
    "llama.cpp bf16": {
        "p0": (613, None),
        "w1": (62, None),
        "w2": (214, None),
        "w3": (36, 30.6),
        "w4": (53, 11.9),
        "w5a": (26, 33.0),
        "w5b": (126, None),
        "w6": (151, None),
        "w6u": (191, None),
    },
    "llama.cpp Q4_1": {
        "p0": (192, None),
        "w1": (57, None),
        "w2": (103, None),
        "w3": (20, 64.0),
        "w4": (31, 27.0),
        "w5b": (64, None),
        "w6": (101, None),
    },
    "vLLM CPU bf16": {
        "p0": (1104, None),
        "w1": (39, None),
        "w2": (297, None),
        "w3": (177, 1.8),
        "w4": (116, 1.6),
        "w5a": (197, 1.6),
        "w5b": (180, None),
        "w6": (181, None),
        "w6u": (220, None),
    },
    "OpenVINO bf16": {
        "p0": (1055, None),
        "w1": (40, None),
        "w2": (314, None),
        "w3": (134, 3.7),
        "w4": (118, 1.9),
        "w5a": (199, 2.1),
        "w5b": (252, None),
        "w6": (215, None),
        "w6u": (276, None),
    },
    "OpenVINO int8": {
        "p0": (1354, None),
        "w1": (52, None),
        "w2": (327, None),
        "w3": (132, 3.3),
        "w4": (131, 1.5),
        "w5a": (167, 2.3),
        "w5b": (228, None),
        "w6": (281, None),
        "w6u": (284, None),
    },
    "transformers bf16": {
        "p0": (747, None),
        "w1": (17, None),
        "w2": (87, None),
        "w3": (18, 12.0),
        "w4": (21, 6.0),
        "w5a": (23, 7.5),
    },
}
#: Copy rate (as "copies" of `Limits`) and bfloat16 products of the machine that the above was measured on, in the same hours.
TABLE_LIMITS = Limits(copy_bytes_per_s=30e9, read_bytes_per_s=30e9, matmul_flop_per_s=366e9, num_threads=2)


@contextmanager
def served(model: str, extra: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A `radixserve serve` process and its URL, once it is healthy. Raises `RuntimeError` when it is not within five minutes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = [part for one in extra for part in _flag(one)]
    command = [sys.executable, "-m", "radixserve.cli", "serve", model, "--port", str(port), "--log-level", "error", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(url, process)
        yield url, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _flag(setting: str) -> list[str]:
    name, _, value = setting.partition("=")
    flag = "--" + name.replace("_", "-")
    if value in ("true", "false"):
        return [flag if value == "true" else flag.replace("--", "--no-", 1)]
    return [flag, value]


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = process.stderr.read().decode("utf-8", "replace") if process.stderr else ""
            raise RuntimeError(f"the server ended with status {process.returncode}: {said[-2000:]}")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the server did not become healthy within five minutes")


def run(url: str, names: Sequence[str], repeats: int, seed: str, out: Console) -> Report:
    """All workloads at one URL."""

    async def go() -> Report:
        target = await HttpTarget.open(url)
        try:
            plan = Plan([WORKLOADS[name] for name in names], repeats=repeats, seed=seed)
            return await measure(target, plan, Watcher(lambda name, done, total: out.print(f"  {done}/{total} {name}")))
        finally:
            await target.close()

    return asyncio.run(go())


_FIGURE = {"p0": "prefill_tokens_per_s", "poisson": "goodput_requests_per_s"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one workload; times are p99, in seconds."""

    speed: float
    """Tokens/s; of p0 prompt tokens/s; of poisson requests/s within the service level."""
    ttft_s: float | None
    first_wave_s: float | None = None
    """TTFT of the requests that come first, as many as run at a time."""
    later_s: float | None = None
    """TTFT of those after them."""
    num_errors: int = 0


def figures(report: Report) -> dict[str, Figures]:
    """By workload."""
    found: dict[str, Figures] = {}
    for rows in settings(report.rows):
        name = rows[0].workload
        found[name] = Figures(
            median(rows, _FIGURE.get(name, "tokens_per_s")) or 0.0,
            median(rows, "ttft_p99_s"),
            median(rows, "ttft_first_wave_p99_s"),
            median(rows, "ttft_later_p99_s"),
            sum(row.num_errors for row in rows),
        )
    return found


def at_limits(name: str, speed: float, limits: Limits) -> float:
    """Speed by the limit that binds the workload: prefill by the matrix products, the rest by the memory."""
    return speed / limits.matmul_flop_per_s * 1e9 if name == "p0" else speed / limits.copy_bytes_per_s * 1e9


def table(ours: dict[str, Figures], limits: Limits, live: dict[str, dict[str, Figures]]) -> Table:
    """A row a workload: ours, ours by the limit, then peers of this run as ratios, then the best of the table by its limits."""
    shown = Table("workload", title=f"the machine {limits}", title_justify="left")
    for name in ("tok/s", "p99 TTFT (first wave, later)", "errors", "by the limit"):
        shown.add_column(name, justify="right")
    for name in live:
        shown.add_column(f"{name}: tok/s, ours over it (TTFT: all, first, later)", justify="right")
    for name in ("best bf16 peer of the table", "best peer of any", "TTFT over the best peer's"):
        shown.add_column(name, justify="right")
    for name, mine in ours.items():
        by_limit = at_limits(name, mine.speed, limits)
        late = f"{_s(mine.ttft_s)} ({_s(mine.first_wave_s)}, {_s(mine.later_s)})"
        cells = [name, f"{mine.speed:.1f}", late, str(mine.num_errors), f"{by_limit:.2f}"]
        for peer in live.values():
            other = peer.get(name)
            cells.append("-" if other is None else _over(mine, other))
        cells += [_best(name, by_limit, "bf16"), _best(name, by_limit, ""), _ttft(name, mine.ttft_s, limits)]
        shown.add_row(*cells)
    return shown


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _over(mine: Figures, other: Figures) -> str:
    if not other.speed:
        return "-"
    pairs = ((mine.ttft_s, other.ttft_s), (mine.first_wave_s, other.first_wave_s), (mine.later_s, other.later_s))
    late = ", ".join(f"{one / two:.2f}" if one and two else "-" for one, two in pairs)
    return f"{other.speed:.1f}, {mine.speed / other.speed:.2f}x ({late})"


def _best(name: str, by_limit: float, kind: str) -> str:
    candidates = [
        (at_limits(name, rows[name][0], TABLE_LIMITS), peer) for peer, rows in PEERS.items() if name in rows and kind in peer
    ]
    if not candidates:
        return "-"
    best, peer = max(candidates)
    return f"{by_limit / best:.2f}x ({peer})"


def _ttft(name: str, ttft: float | None, limits: Limits) -> str:
    """The time to the first text is mostly prefill: both are held against their machine's matrix products."""
    known = [(rows[name][1], peer) for peer, rows in PEERS.items() if name in rows and rows[name][1] is not None]
    if ttft is None or not known:
        return "-"
    best, peer = min((late, peer) for late, peer in known if late is not None)
    return f"{ttft * limits.matmul_flop_per_s / (best * TABLE_LIMITS.matmul_flop_per_s):.2f} ({peer})"


def resident(process: subprocess.Popen[bytes]) -> float:
    """Memory of the server's processes, in GB: what is resident, pages that they share counted in each."""
    parent = psutil.Process(process.pid)
    return sum(one.memory_info().rss for one in (parent, *parent.children(recursive=True))) / 1e9


def _better(one: Limits, other: Limits) -> Limits:
    """The higher of each: what another process took at the time was not the machine's limit."""
    return Limits(
        max(one.copy_bytes_per_s, other.copy_bytes_per_s),
        max(one.read_bytes_per_s, other.read_bytes_per_s),
        max(one.matmul_flop_per_s, other.matmul_flop_per_s),
        one.num_threads,
    )


def main() -> int:
    """Measure; exit status 1 when a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(NAMES))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", default="peers", help="texts are made from it; every server is started fresh or sees them once")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of radixserve serve")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="a server that runs already")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out = Console(highlight=False, width=170)
    unknown = [name for name in options.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}; there are {', '.join(NAMES)}")
    before = measure_limits()
    began = time.monotonic()
    with served(options.model, options.setting) as (url, process):
        ready_s = time.monotonic() - began
        report = run(url, options.workloads, options.repeats, options.seed, out)
        memory = resident(process)
    after = measure_limits()
    limits = _better(before, after)
    live: dict[str, dict[str, Figures]] = {}
    for peer in options.peer:
        name, _, address = peer.partition("=")
        live[name] = figures(run(address, options.workloads, options.repeats, options.seed, out))
    ours = figures(report)
    out.print(table(ours, limits, live))
    out.print(f"start to ready {ready_s:.1f} s, resident {memory:.2f} GB; {options.repeats} passes each, medians")
    for warning in report.warnings:
        out.print(f"note: {warning}")
    for row in report.rows:
        if "valid" in row.extras:
            out.print(f"{row.workload}: {row.extras['valid']} of {row.num_requests} are valid objects")
    if options.json:
        body = {
            "limits": asdict(limits),
            "ready_s": ready_s,
            "resident_gb": memory,
            "report": as_json(report),
            "peers": {name: {key: asdict(value) for key, value in rows.items()} for name, rows in live.items()},
        }
        options.json.write_text(json.dumps(body, indent=2) + "\n")
    return 1 if any(row.num_errors for row in report.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
