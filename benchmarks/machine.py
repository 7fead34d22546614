"""What this machine can do at most, measured: the yardstick beside every figure. `python -m benchmarks.machine` prints it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES = 1 << 28
_SIDE = 2048


@dataclass(frozen=True, slots=True)
class Limits:
    """Best of several tries with all threads of PyTorch."""

    copy_bytes_per_s: float
    """Bytes read and written, together, while a large block is copied."""
    read_bytes_per_s: float
    """Bytes read while a large block is added up."""
    matmul_flop_per_s: float
    """Square bfloat16 matrices: two operations a multiply-add."""
    num_threads: int

    def __str__(self) -> str:
        return (
            f"copies {self.copy_bytes_per_s / 1e9:.1f} GB/s (read + written), reads {self.read_bytes_per_s / 1e9:.1f} GB/s, "
            f"multiplies bf16 at {self.matmul_flop_per_s / 1e9:.0f} GFLOP/s, {self.num_threads} threads"
        )


def measure_limits(tries: int = 7) -> Limits:
    """About two seconds."""
    import torch

    source, target = torch.ones(_BYTES // 8, dtype=torch.float32), torch.zeros(_BYTES // 8, dtype=torch.float32)
    left, right = torch.randn(_SIDE, _SIDE).bfloat16(), torch.randn(_SIDE, _SIDE).bfloat16()
    with torch.inference_mode():
        copy_s = _best(lambda: target.copy_(source), tries)
        read_s = _best(source.sum, tries)
        product_s = _best(lambda: left @ right, tries)
    return Limits(_BYTES / copy_s, _BYTES / 2 / read_s, 2 * _SIDE**3 / product_s, torch.get_num_threads())


def _best(run: Callable[[], object], tries: int) -> float:
    run()
    best = float("inf")
    for _ in range(tries):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    print(measure_limits())
