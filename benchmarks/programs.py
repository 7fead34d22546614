"""Agent programs in the DSL against the same with OpenAI's client on our own HTTP server: programs/s, in turn, on one engine.

    python -m benchmarks.programs [--model smollm2-135m] [--runs 16] [--rounds 3] [--regime ample|tight] [--json FILE]

Three programs (written_twice/work.py says of what sizes), each `--concurrency` at a time. Ample: a pool for all of it, tools that
take no time. Tight: long texts, tools of a second, and a pool a quarter of what the runs of that program hold together; there the
DSL leases what it will come back to. Both begin with an empty cache and must give the same results: `same` is the share of runs that do. The
ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

import radixserve as rs
from benchmarks.written_twice import in_dsl, in_openai
from benchmarks.written_twice.http_server import http_server
from benchmarks.written_twice.work import PROGRAMS, Sizes, Work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

#: Ratio that is wanted, by regime.
BARS = {"ample": 1.0, "tight": 1.5}
_AMPLE = 131_072
#: Tight: contexts are the recorded coding agents' median prompt (104,600 tokens) over 32, which is what fits the bundled model.
SIZES = {
    "ample": Sizes(),
    "tight": Sizes(context=3200, output=16, depth=3, width=2, keep=1, votes=5, questions=3, turns=6, result=60, pause_s=1.0),
}


@dataclass
class Measured:
    """One program in one regime."""

    regime: str
    program: str
    dsl_s: list[float] = field(default_factory=list)
    openai_s: list[float] = field(default_factory=list)
    num_runs: int = 0
    num_same: int = 0
    computed: dict[str, int] = field(default_factory=dict)
    """Prompt tokens that the engine computed in the last round, by way."""
    preemptions: dict[str, int] = field(default_factory=dict)
    """Sequences that lost their pages while they ran, in the last round, by way."""

    @property
    def ratio(self) -> float:
        """How many times as many programs/s the DSL runs."""
        return statistics.median(self.openai_s) / statistics.median(self.dsl_s)

    @property
    def passed(self) -> bool:
        """Whether it reaches its bar with the same results."""
        return self.ratio >= BARS[self.regime] and self.num_same == self.num_runs


async def at_once(works: Sequence[Work], concurrency: int, run: Callable[[Work], Awaitable[str]]) -> tuple[float, list[str]]:
    """Run all, so many at a time; seconds and results."""
    slots = asyncio.Semaphore(concurrency)

    async def one(work: Work) -> str:
        async with slots:
            return await run(work)

    began = time.perf_counter()
    results = await asyncio.gather(*map(one, works))
    return time.perf_counter() - began, results


class Bench:
    """An engine, the HTTP server over it, and both ways to use them."""

    def __init__(self, engine: rs.Engine, base_url: str, concurrency: int) -> None:
        self._engine = engine
        self._openai = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=1800.0)
        self._concurrency = concurrency

    async def dsl(self, program: str, works: Sequence[Work]) -> tuple[float, list[str]]:
        """In the DSL."""

        async def run(work: Work) -> str:
            return (await in_dsl.run(program, work, self._engine)).value

        return await at_once(works, self._concurrency, run)

    async def openai(self, program: str, works: Sequence[Work]) -> tuple[float, list[str]]:
        """With OpenAI's client."""
        return await at_once(works, self._concurrency, lambda work: in_openai.run(program, work, self._openai))

    async def compare(self, measured: Measured, works: Sequence[Work], rounds: int, say: Callable[[str], None]) -> None:
        """Both in turn, and in the next round the other way round."""
        ways = {"dsl": (self.dsl, measured.dsl_s), "openai": (self.openai, measured.openai_s)}
        for number in range(rounds):
            results: dict[str, list[str]] = {}
            for name in list(ways)[:: -1 if number % 2 else 1]:
                way, times = ways[name]
                await self.reset()
                before = await self.stats()
                seconds, results[name] = await way(measured.program, works)
                after = await self.stats()
                measured.computed[name] = after["num_prompt_tokens_computed"] - before["num_prompt_tokens_computed"]
                measured.preemptions[name] = after["num_preemptions"] - before["num_preemptions"]
                times.append(seconds)
                say(f"{measured.regime}, {measured.program}: {name} {seconds:.1f} s")
            measured.num_runs += len(works)
            measured.num_same += sum(a == b for a, b in zip(results["dsl"], results["openai"], strict=True))

    async def reset(self) -> None:
        """Empty the cache."""
        await asyncio.wrap_future(self._engine.client.query("reset_cache"))

    async def stats(self) -> dict[str, int]:
        """The engine's counters, once they have arrived."""
        await asyncio.sleep(1.2)
        stats: dict[str, int] = await asyncio.wrap_future(self._engine.client.query("stats"))
        return stats

    async def peak(self, program: str, work: Work) -> int:
        """Tokens that a branch of one run of a program holds at most."""
        run = await in_dsl.run(program, replace(work, sizes=replace(work.sizes, pause_s=0.0)), self._engine)
        return max(_held(run.trace.root))

    async def close(self) -> None:
        """End the client."""
        await self._openai.close()


def _held(branch: rs.TraceBranch) -> list[int]:
    """Prompt and output of each op below."""
    held = [0]
    for step in branch.steps:
        if step.usage is not None:
            held.append(step.usage.prompt_tokens + step.usage.output_tokens)
        for child in step.branches:
            held += _held(child)
    return held


async def measure(
    regime: str, options: argparse.Namespace, kv_tokens: int, programs: Sequence[str], say: Callable[[str], None]
) -> list[Measured]:
    """All programs in one regime; `say` hears of each pass."""
    sizes = replace(SIZES[regime], **json.loads(options.sizes))
    works = [Work(number, sizes) for number in range(options.runs)]
    rows = [Measured(regime, program) for program in programs]
    chosen: dict[str, Any] = {"kv_tokens": kv_tokens, "log_level": "error", **json.loads(options.settings)}
    with (
        rs.Engine(options.model, **chosen) as engine,
        http_server(engine.url) as (url, _),
    ):
        bench = Bench(engine, url, options.concurrency)
        warm = [Work(-1, replace(sizes, pause_s=0.0, context=20))]
        for row in rows:
            await bench.dsl(row.program, warm)
            await bench.openai(row.program, warm)
            await bench.compare(row, works, options.rounds, say)
        await bench.close()
    return rows


async def quarters(options: argparse.Namespace) -> dict[str, int]:
    """For each program a quarter of the tokens that its runs hold together in the tight regime."""
    sizes = replace(SIZES["tight"], **json.loads(options.sizes))
    with rs.Engine(options.model, kv_tokens=16_384, log_level="error") as engine:
        bench = Bench(engine, "http://unused", options.concurrency)
        peaks = {program: await bench.peak(program, Work(0, sizes)) for program in options.program}
        await bench.close()
    return {program: int(options.concurrency) * peak // 4 for program, peak in peaks.items()}


def show(rows: Sequence[Measured]) -> Table:
    """A row for each program and regime."""
    table = Table("pool", "program", title="programs/s: the DSL and OpenAI's client, on one engine", title_justify="left")
    for name in ("DSL", "OpenAI", "ratio", "bar", "same", "prompt tokens computed", "preempted"):
        table.add_column(name, justify="right")
    for row in rows:
        runs = row.num_runs / len(row.dsl_s)
        dsl, other = (runs / statistics.median(times) for times in (row.dsl_s, row.openai_s))
        computed = f"{row.computed['dsl']:,} / {row.computed['openai']:,}"
        preempted = f"{row.preemptions['dsl']:,} / {row.preemptions['openai']:,}"
        same = f"{row.num_same} of {row.num_runs}"
        colour = "green" if row.passed else "red"
        bar = f">= {BARS[row.regime]:.1f}"
        table.add_row(
            row.regime, row.program, f"{dsl:.2f}", f"{other:.2f}", f"[{colour}]{row.ratio:.2f}[/]", bar, same, computed, preempted
        )
    return table


def main() -> int:
    """Measure; exit status 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--regime", choices=tuple(BARS), nargs="*", default=list(BARS))
    parser.add_argument("--program", choices=PROGRAMS, nargs="*", default=list(PROGRAMS))
    parser.add_argument("--sizes", default="{}", help="fields of Sizes to change, as JSON")
    parser.add_argument("--settings", default="{}", help="of the engine, as JSON")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    out = Console(highlight=False, width=130)
    rows: list[Measured] = []
    for regime in options.regime:
        pools = asyncio.run(quarters(options)) if regime == "tight" else dict.fromkeys(options.program, _AMPLE)
        for kv_tokens in dict.fromkeys(pools.values()):
            programs = [program for program, own in pools.items() if own == kv_tokens]
            out.print(f"{regime}: a pool of {kv_tokens:,} tokens, {options.runs} runs, {options.concurrency} at a time")
            rows += asyncio.run(measure(regime, options, kv_tokens, programs, out.print))
        out.print(show(rows))
    if options.json:
        figures: list[dict[str, Any]] = [{**asdict(row), "ratio": row.ratio} for row in rows]
        options.json.write_text(json.dumps(figures, indent=1))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
