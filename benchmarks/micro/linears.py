"""All linears of a decode step in each form of weights, against reading these weights and against oneDNN's packed operators.

    python -m benchmarks.micro.linears [--rows 1 16 512]

Every layer has weights of its own, as in the model (SmolLM2-135M), so that they come from memory. Each operator is timed by
itself, all forms in turn, and its fastest round counts: a step's figure is the sum, as on a machine that does nothing else.
"read" sums up bfloat16 weights of that size in pieces. "of peak" is the bfloat16 rate against the best of a square product.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from benchmarks.bars.linears import HIDDEN, LAYERS, MLP, QKV, VOCAB
from radixserve_kernels.cpu.backend import CpuBackend
from radixserve_kernels.cpu.linear import pack_linear
from radixserve_kernels.interface import AttentionSpec
from radixserve_kernels.quantized import quantize_4bit, quantize_8bit

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_kernels.interface import Linear

SHAPES = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * MLP, HIDDEN), (HIDDEN, MLP))
WEIGHTS = LAYERS * sum(n * k for n, k in SHAPES) + VOCAB * HIDDEN
SQUARE = 1024


def layers(pack: Callable[[torch.Tensor], Linear]) -> list[Linear]:
    """Every layer's four linears, and the LM head."""
    generator = torch.Generator().manual_seed(0)
    shapes = [*SHAPES * LAYERS, (VOCAB, HIDDEN)]
    return [pack(torch.randn(shape, generator=generator).mul_(0.05).bfloat16()) for shape in shapes]


def fastest(runs: dict[str, list[Callable[[], object]]], rounds: int) -> dict[str, float]:
    """Seconds: for each name, the sum of its operators' fastest rounds."""
    best = {name: [float("inf")] * len(operators) for name, operators in runs.items()}
    for _ in range(rounds):
        for name, operators in runs.items():
            for index, run in enumerate(operators):
                began = time.perf_counter()
                run()
                best[name][index] = min(best[name][index], time.perf_counter() - began)
    return {name: sum(times) for name, times in best.items()}


def step(linears: list[Linear], rows: int) -> list[Callable[[], object]]:
    """Each of them on `rows` rows; the head on 64 at most, as in a step that reads a prompt."""
    narrow, wide = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(rows, MLP).bfloat16()
    inputs = [wide if index % 4 == 3 else narrow for index in range(len(linears) - 1)]
    return [partial(linear, x) for linear, x in zip(linears, [*inputs, narrow[:64]], strict=True)]


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32, 512])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    backend = CpuBackend(AttentionSpec(1, 9, 3, 64, 0.125))
    forms: dict[str, Callable[[torch.Tensor], Linear]] = {
        "bf16": lambda weight: backend.pack_linear(weight, None),
        "oneDNN": lambda weight: pack_linear(weight, None),
        "8 bits": lambda weight: backend.pack_quantized([quantize_8bit(weight)], None, torch.bfloat16),
        "4 bits": lambda weight: backend.pack_quantized([quantize_4bit(weight)], None, torch.bfloat16),
    }
    packed = {name: layers(pack) for name, pack in forms.items()}
    memory = torch.zeros(WEIGHTS // 2, dtype=torch.float32)
    square = torch.randn(SQUARE, SQUARE).bfloat16()
    print(
        f"{'rows':>5} {'read':>8} "
        + " ".join(f"{name:>8}" for name in forms)
        + "   bf16/read  8/bf16  4/bf16  bf16/oneDNN  of peak"
    )
    for rows in options.rows:
        with torch.inference_mode():
            runs = {name: step(linears, rows) for name, linears in packed.items()}
            runs["read"] = [piece.sum for piece in memory.chunk(64)]
            runs["square"] = [partial(torch.matmul, square, square)]
            times = fastest(runs, options.rounds)
        peak = 2 * SQUARE**3 / times["square"]
        rate = 2 * (rows * (WEIGHTS - VOCAB * HIDDEN) + min(rows, 64) * VOCAB * HIDDEN) / times["bf16"]
        bf16 = times["bf16"]
        print(
            f"{rows:>5} {1e3 * times['read']:>8.2f} "
            + " ".join(f"{1e3 * times[name]:>8.2f}" for name in forms)
            + f"   {bf16 / times['read']:>9.2f} {times['8 bits'] / bf16:>7.2f} {times['4 bits'] / bf16:>7.2f} "
            f"{bf16 / times['oneDNN']:>12.2f} {rate / peak:>8.2f}"
        )


if __name__ == "__main__":
    main()
