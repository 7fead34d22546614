"""Processor time of one `gen(max_tokens=1)` outside the runtime, at 32 programs at once; and of the same request over HTTP.

    python -m benchmarks.overhead_cpu [--model smollm2-135m] [--rounds 15]

DSL: this process (which is nothing but the client) and the tokenizer process. HTTP: a client that does as little as can be (httpx
with a body made before), the HTTP server, and the tokenizer process. Both in one run, in turn: the programs ask, wait for the
answer, say something and ask again. Figures are medians over rounds of process times (user and system), per generation. Bars: the
DSL's median below 1 ms, and below the HTTP path's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

import radixserve as rs
from benchmarks.written_twice.http_server import http_server

SYSTEM = "You are a careful assistant."
QUESTION = "Say a word."
Round = Callable[[], Awaitable[None]]


@rs.function
async def asking(s: rs.State, count: int) -> None:
    """So many generations of a token, one after the other."""
    s += rs.system(SYSTEM)
    for _ in range(count):
        s += rs.user(QUESTION)
        await s.gen(max_tokens=1, temperature=0.0)


@rs.function
async def asking_once(s: rs.State) -> None:
    """A program that is opened for one generation."""
    s += (rs.system(SYSTEM), rs.user(QUESTION))
    await s.gen(max_tokens=1, temperature=0.0)


def cpu_ms(pids: dict[str, int]) -> dict[str, float]:
    """Processor time that each process has used."""
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    return {name: 1e3 * (spent.user + spent.system) for name, spent in times.items()}


async def measured(work: Round, pids: dict[str, int], count: int) -> dict[str, float]:
    """Milliseconds of each process for one of the `count` generations that `work` does."""
    before = cpu_ms(pids)
    await work()
    return {name: (after - before[name]) / count for name, after in cpu_ms(pids).items()}


class Overhead:
    """The ways to ask, each for `programs` at once and `count` times in each."""

    def __init__(self, engine: rs.EngineLike, http: httpx.AsyncClient, programs: int, count: int) -> None:
        self._engine = engine
        self._http = http
        self._programs = programs
        self._count = count

    async def dsl(self) -> None:
        """Programs that go on."""
        await asyncio.gather(*(asking.using(engine=self._engine).arun(self._count) for _ in range(self._programs)))

    async def dsl_once(self) -> None:
        """A new program for each generation, as HTTP has it."""

        async def one_after_the_other() -> None:
            for _ in range(self._count):
                await asking_once.using(engine=self._engine).arun()

        await asyncio.gather(*(one_after_the_other() for _ in range(self._programs)))

    async def http(self) -> None:
        """The same question as a request."""
        body: dict[str, Any] = {
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
            "max_tokens": 1,
            "temperature": 0.0,
        }

        async def one_after_the_other() -> None:
            for _ in range(self._count):
                (await self._http.post("/chat/completions", json=body)).raise_for_status()

        await asyncio.gather(*(one_after_the_other() for _ in range(self._programs)))


def show(figures: dict[str, list[dict[str, float]]], out: Console) -> dict[str, float]:
    """Print medians by way and process; returns the totals."""
    table = Table("way", title="processor time of one gen(max_tokens=1), ms", title_justify="left")
    for name in ("client", "HTTP server", "tokenizer", "all"):
        table.add_column(name, justify="right")
    totals: dict[str, float] = {}
    for way, rounds in figures.items():
        totals[way] = statistics.median(sum(one.values()) for one in rounds)
        cells = [
            f"{statistics.median(one[name] for one in rounds):.3f}" if name in rounds[0] else "-"
            for name in ("client", "HTTP server", "tokenizer")
        ]
        table.add_row(way, *cells, f"{totals[way]:.3f}")
    out.print(table)
    return totals


async def run(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """All rounds."""
    figures: dict[str, list[dict[str, float]]] = {}
    with rs.Engine(options.model, log_level="error") as engine, http_server(engine.url) as (url, server_pid):
        pids = {"client": psutil.Process().pid, "tokenizer": engine.supervisor.pids["tokenizer"]}
        limits = httpx.Limits(max_connections=options.programs, max_keepalive_connections=options.programs)
        async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as http:
            overhead = Overhead(engine, http, options.programs, options.count)
            ways: dict[str, tuple[Round, dict[str, int]]] = {
                "DSL": (overhead.dsl, pids),
                "DSL, a program each": (overhead.dsl_once, pids),
                "HTTP": (overhead.http, {**pids, "HTTP server": server_pid}),
            }
            for number in range(options.rounds + 1):
                for name, (work, its_pids) in ways.items():
                    spent = await measured(work, its_pids, options.programs * options.count)
                    if number:  # the first round warms up
                        figures.setdefault(name, []).append(spent)
    return figures


def main() -> int:
    """Measure; exit status 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--programs", type=int, default=32)
    parser.add_argument("--count", type=int, default=8, help="generations of each program in a round")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    out = Console(highlight=False)
    totals = show(asyncio.run(run(options)), out)
    passed = totals["DSL"] < 1.0 and totals["DSL"] < totals["HTTP"]
    out.print(f"DSL {totals['DSL']:.3f} ms (bar < 1 ms), HTTP {totals['HTTP']:.3f} ms: {'ok' if passed else 'short'}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
