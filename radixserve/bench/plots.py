"""Pictures of a sweep: the main figures over concurrency or rate, a line a workload. Needs the `plots` extra."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

from radixserve.bench.ask import BenchError
from radixserve.bench.report import median, settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from radixserve.bench.figures import Row
    from radixserve.bench.measure import Report

#: File, axis title, (figure, line style) pairs.
_PICTURES: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("ttft", "time to the first text, s (dashed: p99)", (("ttft_p50_s", "-"), ("ttft_p99_s", "--"))),
    ("itl", "time between tokens, s (dashed: p99)", (("itl_p50_s", "-"), ("itl_p99_s", "--"))),
    ("throughput", "output tokens/s", (("tokens_per_s", "-"),)),
    ("hit_rate", "prompt tokens from the cache, share", (("hit_rate", "-"),)),
    ("goodput", "requests/s within the service level", (("goodput_requests_per_s", "-"),)),
)


def require() -> None:
    """Raise `BenchError` unless pictures can be drawn: better before a measurement than after it."""
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise BenchError("--plot needs matplotlib: pip install 'radixserve[plots]'") from error


def draw(report: Report, folder: Path) -> list[Path]:
    """Write `NAME.png` and `NAME.svg` for each picture that has anything to show. Raises `BenchError`, `OSError`."""
    require()
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")  # no display is needed, and none opened
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    folder.mkdir(parents=True, exist_ok=True)
    lines = _lines(report.rows)
    written: list[Path] = []
    for name, title, figures in _PICTURES:
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        if _draw(axes, lines, figures):
            axes.set_xlabel("arrivals in a second" if any(row.rate for row in report.rows) else "at a time")
            axes.set_ylabel(title)
            axes.set_ylim(bottom=0)
            axes.set_title(f"{report.model}", loc="left")
            axes.grid(alpha=0.3)
            axes.legend()
            for kind in ("png", "svg"):
                written.append(folder / f"{name}.{kind}")
                figure.savefig(written[-1], dpi=120)
        pyplot.close(figure)
    return written


def _lines(rows: Sequence[Row]) -> dict[str, list[list[Row]]]:
    """Points of each line: rows of one setting, by concurrency or rate."""
    lines: dict[str, list[list[Row]]] = {}
    for group in settings(rows):
        lines.setdefault(f"{group[0].workload} {group[0].part}".strip(), []).append(group)
    for points in lines.values():
        points.sort(key=lambda group: (group[0].rate, group[0].concurrency))
    return lines


def _draw(axes: Any, lines: dict[str, list[list[Row]]], figures: tuple[tuple[str, str], ...]) -> bool:
    drawn = False
    for number, (name, points) in enumerate(lines.items()):
        places = [group[0].rate or group[0].concurrency for group in points]
        for place, (figure, style) in enumerate(figures):
            values = [median(group, figure) for group in points]
            if all(value is None for value in values):
                continue
            heights = [math.nan if value is None else value for value in values]
            label = {"label": name} if place == 0 else {}
            axes.plot(places, heights, style, marker="o", color=f"C{number % 10}", **label)
            drawn = True
    return drawn
