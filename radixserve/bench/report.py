"""A report as a table and as JSON. The JSON's form has a version; a field is never taken away within one."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson
from rich.table import Table

from radixserve import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from radixserve.bench.figures import Row, Spread
    from radixserve.bench.measure import Report

SCHEMA = "radixserve.bench/1"


def as_json(report: Report) -> dict[str, Any]:
    """All rows, and of rows that are repeats of one setting the medians."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "server": {"address": report.address, "model": report.model},
        "seed": report.seed,
        "warnings": report.warnings,
        "rows": [row.as_dict() for row in report.rows],
        "medians": [_medians(rows) for rows in settings(report.rows)],
    }


def write_json(report: Report, path: Path) -> None:
    """Write it; raises `OSError`."""
    path.write_bytes(orjson.dumps(as_json(report), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def settings(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by setting, repeats together, in the order of measurement."""

    def setting(row: Row) -> tuple[str, str, int, float]:
        return row.workload, row.part, row.concurrency, row.rate

    order = {key: place for place, key in reversed(list(enumerate(map(setting, rows))))}
    ordered = sorted(rows, key=lambda row: order[setting(row)])
    return [list(group) for _, group in groupby(ordered, key=setting)]


#: Name in the JSON, and how it is read off a row.
_MEDIANS: dict[str, Callable[[Row], float | None]] = {
    "tokens_per_s": lambda row: row.tokens_per_s,
    "prompt_tokens_per_s": lambda row: row.prompt_tokens_per_s,
    "prefill_tokens_per_s": lambda row: row.prefill_tokens_per_s,
    "requests_per_s": lambda row: row.requests_per_s,
    "ttft_p50_s": lambda row: _of(row.ttft_s, "p50"),
    "ttft_p99_s": lambda row: _of(row.ttft_s, "p99"),
    "ttft_first_wave_p99_s": lambda row: _of(row.ttft_first_wave_s, "p99"),
    "ttft_later_p99_s": lambda row: _of(row.ttft_later_s, "p99"),
    "itl_p50_s": lambda row: _of(row.itl_s, "p50"),
    "itl_p99_s": lambda row: _of(row.itl_s, "p99"),
    "tpot_p50_s": lambda row: _of(row.tpot_s, "p50"),
    "hit_rate": lambda row: row.hit_rate,
    "goodput_share": lambda row: row.goodput.share,
    "goodput_strict_share": lambda row: row.goodput.strict_share,
    "goodput_requests_per_s": lambda row: row.goodput.requests_per_s,
    "num_errors": lambda row: row.num_errors,
    "client_cpu_share": lambda row: row.client_cpu_share,
}


def median(rows: Sequence[Row], name: str) -> float | None:
    """The median of a figure over repeats; None where a server does not give it."""
    values = [value for row in rows if (value := _MEDIANS[name](row)) is not None]
    return statistics.median(values) if values else None


def _of(spread: Spread | None, name: str) -> float | None:
    return None if spread is None else float(getattr(spread, name))


def _medians(rows: list[Row]) -> dict[str, Any]:
    first = rows[0]
    return {
        "workload": first.workload,
        "part": first.part,
        "concurrency": first.concurrency,
        "rate": first.rate,
        "repeats": len(rows),
        "num_requests": sum(row.num_requests for row in rows),
        "num_errors_in_all": sum(row.num_errors for row in rows),
        **{name: median(rows, name) for name in _MEDIANS},
    }


def table(report: Report) -> Table:
    """A row a setting; figures are medians over the repeats, with the range of tokens/s where there are several."""
    shown = Table(title=f"{report.model} at {report.address}", title_justify="left")
    shown.add_column("workload", overflow="fold")
    for name in (
        "at a time",
        "requests",
        "errors",
        "out tok/s",
        "TTFT p50",
        "p99",
        "ITL p50",
        "p99",
        "prefill tok/s",
        "hits",
        "goodput",
    ):
        shown.add_column(name, justify="right")
    for rows in settings(report.rows):
        shown.add_row(*_cells(rows))
    return shown


def _cells(rows: list[Row]) -> list[str]:
    first = rows[0]
    speeds = [row.tokens_per_s for row in rows]
    spread = f" ({min(speeds):.1f}-{max(speeds):.1f})" if len(rows) > 1 else ""
    errors = sum(row.num_errors for row in rows)
    share = median(rows, "goodput_share")
    return [
        f"{first.workload} {first.part}".strip(),
        f"{first.rate:g}/s" if first.rate else str(first.concurrency),
        str(sum(row.num_requests for row in rows)),
        f"[red]{errors}[/red]" if errors else "0",
        f"{statistics.median(speeds):.1f}{spread}",
        *(_seconds(median(rows, name)) for name in ("ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s")),
        _figure(median(rows, "prefill_tokens_per_s"), "{:.0f}"),
        _figure(median(rows, "hit_rate"), "{:.0%}"),
        "-" if share is None else f"{share:.0%}, {median(rows, 'goodput_requests_per_s') or 0.0:.2f}/s",
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
