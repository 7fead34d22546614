"""Replay a recorded trace through the real scheduler and radix cache under a virtual clock.

    python benchmarks/simulate.py --trace FILE [--policy fcfs,lpm,vtc,dlpm] [--tenants 100 --zipf 1.1] [--load 2] [--json OUT] [--plot OUT.svg]

`--help` lists everything. What is simulated, and what is not, is said in docs/fairness.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, not as a module: the folder above is where `benchmarks` is found.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.simulator.cli import main

    sys.exit(main())
