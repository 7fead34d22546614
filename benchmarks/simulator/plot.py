"""Service over time and the main figures by policy, as one SVG file. Written by hand: a plotting library is not needed for lines and bars."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .report import Result, TenantResult

_WIDTH, _HEIGHT, _MARGIN = 420, 200, 48
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
_MAX_LINES = 8


def svg(results: Sequence[Result]) -> str:
    """A row a policy with service by tenant over time, then bars that compare the policies."""
    charts = [_service(result, 0, row * (_HEIGHT + _MARGIN)) for row, result in enumerate(results)]
    bars: list[tuple[str, Callable[[Result], float]]] = [
        ("hit rate", lambda result: result.hit_rate),
        ("tokens/s", lambda result: result.tokens_per_s),
        ("TTFT p99, s", lambda result: result.ttft_s["all"].p99),
        ("mean completion of programs, s", lambda result: result.completion_s.mean),
    ]
    left = _WIDTH + 2 * _MARGIN
    for row, (title, value) in enumerate(bars):
        charts.append(_bars(title, [(result.policy, value(result)) for result in results], left, row * (_HEIGHT + _MARGIN)))
    height = max(len(results), len(bars)) * (_HEIGHT + _MARGIN) + _MARGIN
    width = 2 * _WIDTH + 4 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(charts)}</svg>\n'
    )


def _largest(result: Result) -> list[TenantResult]:
    return sorted(result.tenants, key=lambda tenant: -tenant.charge)[:_MAX_LINES]


def _service(result: Result, x: float, y: float) -> str:
    tenants = _largest(result)
    highest = max((value / tenant.weight for tenant in tenants for value in tenant.service), default=0.0) or 1.0
    parts = [
        _frame(
            f"{result.policy}: charge by weight of the {len(tenants)} largest tenants, by {result.stretch_s:g} s", highest, x, y
        )
    ]
    for number, tenant in enumerate(tenants):
        step = _WIDTH / max(1, len(tenant.service) - 1)
        points = " ".join(
            f"{x + _MARGIN + index * step:.1f},{y + _MARGIN + _HEIGHT * (1 - value / tenant.weight / highest):.1f}"
            for index, value in enumerate(tenant.service)
        )
        parts.append(
            f'<polyline fill="none" stroke="{_COLOURS[number]}" points="{points}"><title>{escape(tenant.name)}</title></polyline>'
        )
    return "".join(parts)


def _bars(title: str, values: list[tuple[str, float]], x: float, y: float) -> str:
    highest = max((value for _, value in values), default=0.0) or 1.0
    parts = [_frame(title, highest, x, y)]
    width = _WIDTH / max(1, len(values))
    for number, (name, value) in enumerate(values):
        height = _HEIGHT * value / highest
        left, top = x + _MARGIN + number * width + width * 0.2, y + _MARGIN + _HEIGHT - height
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width * 0.6:.1f}" height="{height:.1f}" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
        )
        parts.append(f'<text x="{left:.1f}" y="{y + _MARGIN + _HEIGHT + 13:.1f}">{escape(name)} {value:.4g}</text>')
    return "".join(parts)


def _frame(title: str, highest: float, x: float, y: float) -> str:
    left, top = x + _MARGIN, y + _MARGIN
    return (
        f'<text x="{left}" y="{top - 8}">{escape(title)}</text>'
        f'<text x="{left - 4}" y="{top + 8}" text-anchor="end">{highest:.3g}</text>'
        f'<path d="M{left} {top}V{top + _HEIGHT}H{left + _WIDTH}" fill="none" stroke="#333"/>'
    )
