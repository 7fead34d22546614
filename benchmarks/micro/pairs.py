"""Timings that are compared: run in turn, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def interleaved(runs: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 3) -> dict[str, float]:
    """Median seconds of each, called in turn `rounds` times."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for attempt in range(warmup + rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if attempt >= warmup:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def copy_bandwidth(num_bytes: int = 1 << 28) -> Callable[[], object]:
    """Copies half of `num_bytes` to the other half: `num_bytes` in all go through memory."""
    import torch

    source = torch.zeros(num_bytes // 2, dtype=torch.uint8)
    target = torch.ones_like(source)
    return lambda: target.copy_(source)
