"""All bars, one after the other: `python -m benchmarks.bars [NAME ...]`."""

from __future__ import annotations

import importlib
import sys

from benchmarks.bars.table import show

NAMES = (
    "same_answer",
    "overhead",
    "batching",
    "stalls",
    "sharing",
    "pressure",
    "forks",
    "faults",
    "fairness",
    "priority",
    "scale",
)


def main() -> int:
    """Run the named bars (all without names); exit status 1 if one falls short."""
    rows: list[tuple[str, str, str, bool]] = []
    for name in sys.argv[1:] or NAMES:
        rows += importlib.import_module(f"benchmarks.bars.{name}").main()
        show(rows)
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
