"""Carries out a plan: every part of every workload, at every setting of the sweep, so many times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from radixserve.bench.ask import BenchError, Output
from radixserve.bench.figures import Setting, row_of
from radixserve.bench.run import Run
from radixserve.bench.shape import Shape, shape_of
from radixserve.bench.words import calibrate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from radixserve.bench.ask import Outcome, Target
    from radixserve.bench.figures import Row
    from radixserve.bench.words import Speller
    from radixserve.bench.workload import Workload

#: Above this share of the wall time the client's own CPU time may be what is measured, on a machine that it shares with the server.
CLIENT_CPU_LIMIT = 0.3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. Raises `BenchError` where a workload takes no such size."""

    workloads: Sequence[Workload]
    sizes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sizes (shape.py) that were given."""
    concurrencies: Sequence[int] = ()
    """Empty: each workload's own."""
    rates: Sequence[float] = ()
    repeats: int = 1
    seed: str = "0"
    warmup: bool = True

    def passes(self) -> list[tuple[Workload, Shape]]:
        """A shape for each point of the sweep, in order. A workload that a sweep does not concern refuses it."""
        found: list[tuple[Workload, Shape]] = []
        for workload in self.workloads:
            sweep: list[dict[str, Any]] = [{}]
            if self.concurrencies:
                sweep = [{"concurrency": value} for value in self.concurrencies]
            if self.rates:
                sweep = [{**point, "rate": value} for point in sweep for value in self.rates]
            found += [
                (workload, shape_of(workload.name, workload.defaults, workload.settable, {**self.sizes, **point}))
                for point in sweep
            ]
        return found


@dataclass(slots=True)
class Report:
    """What was measured, and what should be known about it."""

    address: str
    model: str
    seed: str
    rows: list[Row] = field(default_factory=list["Row"])
    warnings: list[str] = field(default_factory=list[str])

    def warn(self, text: str) -> None:
        """Once."""
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told how it goes."""

    on_pass: Callable[[str, int, int], None] = lambda name, done, total: None
    """(what begins, passes done, passes in all)"""
    on_outcome: Callable[[Outcome], None] = lambda outcome: None


async def measure(target: Target, plan: Plan, watcher: Watcher | None = None) -> Report:
    """Calibrate, warm up, then measure. Raises `BenchError` where nothing can be measured; errors of single requests are in the rows."""
    told = watcher or Watcher()
    passes = plan.passes()
    total = plan.repeats * sum(len(workload.parts) for workload, _ in passes)
    told.on_pass("calibrating", 0, total)
    speller = await calibrate(target.count)
    report = Report(target.address, target.model, plan.seed, warnings=list(target.notes))
    if plan.warmup:
        told.on_pass("warming up", 0, total)
        await warm_up(target, speller, plan.seed)
    done = 0
    for workload, shape in passes:
        for repeat in range(plan.repeats):
            for part in workload.parts:
                told.on_pass(_title(workload, part, shape, repeat), done, total)
                report.rows.append(await _pass(target, speller, workload, part, shape, repeat, report, told))
                done += 1
    told.on_pass("done", done, total)
    return report


async def warm_up(target: Target, speller: Speller, seed: str) -> None:
    """A long prompt, then a batch of short ones, so that nothing is compiled, allocated or learned while it is measured."""
    run = Run(target, speller, Shape(), f"warm-up {seed}")
    long = min(1024, target.max_context // 2) if target.max_context else 1024
    await run.ask(run.prompt(max(long, 64)), Output(8))
    prompts = [run.prompt(128) for _ in range(16)]
    await run.all([partial(run.ask, prompt, Output(24)) for prompt in prompts], 16)
    failed = [one.error for one in run.outcomes if one.error]
    if len(failed) == len(run.outcomes):
        raise BenchError(f"every request of the warm-up failed; the first with {failed[0]}")


async def _pass(
    target: Target, speller: Speller, workload: Workload, part: str, shape: Shape, repeat: int, report: Report, told: Watcher
) -> Row:
    seed = f"{workload.name} {shape.concurrency} {shape.rate} {report.seed} {repeat}"
    run = Run(target, speller, shape, seed, part, told.on_outcome)
    cpu = time.process_time()
    try:
        await workload.parts[part](run)
    except* BenchError as problems:
        raise _first(problems) from problems
    cpu = time.process_time() - cpu
    if not run.outcomes:
        raise BenchError(f"{workload.name} sent no request")
    concurrency = 0 if workload.open_arrivals else shape.concurrency
    setting = Setting(
        workload.name,
        part,
        concurrency,
        shape.rate if workload.open_arrivals else 0.0,
        repeat,
        shape.ttft_limit_s,
        shape.itl_limit_s,
    )
    row = row_of(setting, run.outcomes, cpu, run.extras)
    for note in (*run.notes, *_doubts(row, run)):
        report.warn(note)
    return row


def _doubts(row: Row, run: Run) -> list[str]:
    """What makes a row less than it seems."""
    found: list[str] = []
    name = f"{row.workload} {row.part}".strip()
    if row.client_cpu_share > CLIENT_CPU_LIMIT:
        found.append(
            f"{name}: the client used {row.client_cpu_share:.0%} of a core; beside the server it may be the bottleneck (run it on another machine)"
        )
    if row.num_errors:
        found.append(f"{name}: {row.num_errors} of {row.num_requests} requests failed, the most with: {next(iter(row.errors))}")
    enforced = sum(one.asked.schema is not None for one in run.outcomes if not one.error)
    if enforced > row.extras.get("valid", enforced):
        found.append(f"{name}: {enforced - row.extras['valid']} of {enforced} answers do not match the schema that was asked for")
    exact = [one for one in run.outcomes if not one.error and one.asked.exact]
    short = sum(one.output_tokens != one.asked.max_tokens * one.asked.n for one in exact)
    if short:
        found.append(f"{name}: {short} of {len(exact)} outputs do not have the length that was asked for")
    return found


def _title(workload: Workload, part: str, shape: Shape, repeat: int) -> str:
    at = f"{shape.rate:g}/s" if workload.open_arrivals else f"{shape.concurrency} at a time"
    return f"{workload.name}{' ' + part if part else ''}, {at}, pass {repeat + 1}"


def _first(problems: BaseExceptionGroup[BenchError]) -> BenchError:
    for problem in problems.exceptions:
        return _first(problem) if isinstance(problem, BaseExceptionGroup) else problem
    raise AssertionError("a group of exceptions is never empty")
