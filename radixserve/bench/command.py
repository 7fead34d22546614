"""`radixserve bench`."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import click
import orjson

from radixserve.bench.ask import BenchError
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.bench.ask import Outcome, Target
    from radixserve.bench.measure import Plan, Report

#: Flags of their own, as they take lists.
_SWEPT = ("concurrency", "rate")


def _numbers(kind: type[int] | type[float]) -> Callable[[str], list[float]]:
    """Reads comma-separated numbers above 0."""

    def read(value: str) -> list[float]:
        try:
            found = [kind(one) for one in value.split(",")]
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,4,16") from error
        if not all(one > 0 for one in found):
            raise click.BadParameter(f"{value!r} has a number that is not above 0")
        return list(found)

    return read


def _size_options(command: Callable[..., None]) -> Callable[..., None]:
    """One flag for each field of `Shape`."""
    hints = get_type_hints(Shape, {"Path": Path})
    for spec in reversed(fields(Shape)):
        flag = "--" + spec.name.replace("_", "-")
        if spec.name in _SWEPT:
            kind: Any = _numbers(hints[spec.name])
        else:
            kind = click.Path(path_type=Path, dir_okay=False, exists=True) if spec.name == "trace" else hints[spec.name]
        metavar = "N,N,..." if spec.name in _SWEPT else None
        command = click.option(flag, spec.name, type=kind, default=None, metavar=metavar, help=spec.metadata["help"])(command)
    return command


def _epilog() -> str:
    rows = "\n".join(f"  {one.name:<14} {one.summary}" for one in WORKLOADS.values())
    return f"\b\nWorkloads:\n{rows}"


@click.command(epilog=_epilog())
@click.argument("workloads", nargs=-1, required=True, metavar="WORKLOAD...")
@click.option("--url", default="", help="An OpenAI-compatible server, such as http://127.0.0.1:8000.")
@click.option("--socket", default="", help="An engine's socket, such as ipc:///run/user/1000/radixserve/...")
@click.option("--model", default="", help="Model name; empty: the first that the server lists.")
@click.option(
    "--repeats", default=1, show_default=True, type=click.IntRange(1), help="Passes of each setting; figures are medians."
)
@click.option("--seed", default="", help="Texts are made from it; empty: new ones, so that a prefix cache is cold.")
@click.option("--warmup/--no-warmup", default=True, show_default=True, help="Some requests first that are not measured.")
@click.option(
    "--timeout", "timeout_s", default=900.0, show_default=True, help="Seconds without a byte after which a request fails."
)
@click.option("--extra-body", default="{}", help="JSON object that is added to every request of --url.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all figures to this file.")
@click.option("--plot", "plot_folder", type=click.Path(path_type=Path, file_okay=False), help="Draw pictures into this folder.")
@_size_options
def bench(
    workloads: tuple[str, ...],
    url: str,
    socket: str,
    model: str,
    repeats: int,
    seed: str,
    warmup: bool,
    timeout_s: float,
    extra_body: str,
    json_file: Path | None,
    plot_folder: Path | None,
    **sizes: Any,
) -> None:
    """Measure a running server with one or more WORKLOADs.

    Keys come from the environment: RADIXSERVE_BENCH_KEYS (several, comma-separated), else RADIXSERVE_API_KEY or OPENAI_API_KEY.
    Exits with 1 when a request failed.
    """
    from radixserve.bench.measure import Plan

    unknown = [name for name in workloads if name not in WORKLOADS]
    if unknown:
        raise click.UsageError(f"there is no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    if bool(url) == bool(socket):
        raise click.UsageError("say what to measure: --url http://... or --socket ipc://...")
    if socket and (model or extra_body != "{}"):
        raise click.UsageError("--model and --extra-body are for --url; a socket has one model and no bodies")
    given = {name: value for name, value in sizes.items() if value is not None}
    concurrencies, rates = given.pop("concurrency", []), given.pop("rate", [])
    if "trace" in workloads and "trace" not in given:
        raise click.UsageError("the workload trace needs --trace FILE (docs/benchmarks.md says of which form)")
    plan = Plan(
        [WORKLOADS[name] for name in workloads], given, concurrencies, rates, repeats, seed or str(time.time_ns()), warmup
    )
    try:
        plan.passes()
        _check(plot_folder)
        report = asyncio.run(_measure(url, socket, model, timeout_s, _object(extra_body), plan))
        _show(report, json_file, plot_folder)
    except BenchError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    sys.exit(1 if any(row.num_errors for row in report.rows) else 0)


def _check(plot_folder: Path | None) -> None:
    if plot_folder is not None:
        from radixserve.bench.plots import require

        require()


def _object(text: str) -> dict[str, Any]:
    try:
        found: Any = orjson.loads(text)
    except ValueError as error:
        raise BenchError(f"--extra-body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BenchError("--extra-body must be a JSON object")
    return found  # pyright: ignore[reportUnknownVariableType]


async def _measure(url: str, socket: str, model: str, timeout_s: float, extra_body: dict[str, Any], plan: Plan) -> Report:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from radixserve.bench.keys import keys_of
    from radixserve.bench.measure import Watcher, measure
    from radixserve.bench.over_http import HttpTarget
    from radixserve.bench.over_socket import SocketTarget

    keys = keys_of()
    target: Target
    if socket:
        target = await SocketTarget.open(socket, keys=keys)
    else:
        target = await HttpTarget.open(url, model=model, keys=keys, timeout_s=timeout_s, extra_body=extra_body)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[answers]}"), TimeElapsedColumn())
    # Drawn twice a second: the client must not be what is measured.
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True) as progress:
        task = progress.add_task("connecting", total=None, answers="")
        answered = failed = 0

        def on_pass(name: str, done: int, total: int) -> None:
            nonlocal answered, failed
            answered = failed = 0
            progress.update(task, description=name, completed=done, total=total, answers="")

        def on_outcome(outcome: Outcome) -> None:
            nonlocal answered, failed
            answered += 1
            failed += bool(outcome.error)
            progress.update(task, answers=f"{answered} answered" + (f", {failed} failed" if failed else ""))

        try:
            return await measure(target, plan, Watcher(on_pass, on_outcome))
        finally:
            await target.close()


def _show(report: Report, json_file: Path | None, plot_folder: Path | None) -> None:
    from rich.console import Console

    from radixserve.bench.report import table, write_json

    out = Console(highlight=False, width=None if sys.stdout.isatty() else 180)
    out.print(table(report))
    for warning in report.warnings:
        out.print(f"[yellow]note:[/yellow] {warning}", soft_wrap=True)
    if json_file is not None:
        write_json(report, json_file)
    if plot_folder is not None:
        from radixserve.bench.plots import draw

        draw(report, plot_folder)
