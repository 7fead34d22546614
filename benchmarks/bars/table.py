"""One table for all bars."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def show(rows: list[tuple[str, str, str, bool]]) -> bool:
    """Print (what, figure, bar, passed) rows; returns whether all passed."""
    table = Table("what", "figure", "bar", "")
    for what, figure, bar, passed in rows:
        table.add_row(what, figure, bar, "[green]ok[/green]" if passed else "[red]short[/red]")
    Console(highlight=False).print(table)
    return all(row[3] for row in rows)
