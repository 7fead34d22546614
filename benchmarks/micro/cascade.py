"""Attention over a prefix that many sequences share, against the plain matrix product and against attention that doesn't share.

    python -m benchmarks.micro.cascade

Bars: 32 sequences over 4,096 shared tokens take <= 1.5 x the time of a matrix product, softmax and matrix product of the same
shape, and <= 1 / 1.5 of the flat kernel's. What the flat kernel reads a second stands beside what the machine copies.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.micro.pairs import copy_bandwidth, interleaved
from radixserve_kernels.cpu.backend import CpuBackend
from radixserve_kernels.interface import AttentionSpec, RaggedBatch

SPEC = AttentionSpec(num_layers=1, num_q_heads=9, num_kv_heads=3, head_dim=64, scale=64**-0.5)
PAGE = 16


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def decode_batch(sequences: int, shared: int) -> tuple[RaggedBatch, int]:
    """One token each after `shared` common ones; and the number of pages."""
    common, pages = shared // PAGE, []
    for index in range(sequences):
        pages += [*range(common), common + index]
    return RaggedBatch(
        qo_indptr=_int32(list(range(sequences + 1))),
        kv_len=_int32([shared + 1] * sequences),
        page_indptr=_int32([(common + 1) * index for index in range(sequences + 1)]),
        page_indices=_int32(pages),
        positions=_int32([shared] * sequences),
        slots=_int32([(common + index) * PAGE for index in range(sequences)]),
        page_size_tokens=PAGE,
    ), common + sequences


def measure(sequences: int, shared: int, rounds: int) -> dict[str, float]:
    """Median seconds of each way."""
    batch, num_pages = decode_batch(sequences, shared)
    heads, kv_heads, dim = SPEC.num_q_heads, SPEC.num_kv_heads, SPEC.head_dim
    fused = torch.randn(sequences, heads + 2 * kv_heads, dim).bfloat16()
    q, k, v = fused.split([heads, kv_heads, kv_heads], dim=1)
    backends = {"cascade": CpuBackend(SPEC), "flat": CpuBackend(SPEC, cascade=False)}
    for backend in backends.values():
        backend.allocate_kv(num_pages, PAGE, torch.bfloat16)
        backend.kv_pool.copy_(torch.randn(backend.kv_pool.shape))
        backend.prepare(batch)
    keys, values = (torch.randn(kv_heads, shared, dim).bfloat16() for _ in range(2))
    queries = torch.randn(kv_heads, sequences * heads // kv_heads, dim).bfloat16()

    def plain() -> torch.Tensor:
        return torch.softmax(queries @ keys.transpose(1, 2) * SPEC.scale, dim=-1) @ values

    runs = {
        "cascade": lambda: backends["cascade"].attend(0, q, k, v),
        "flat": lambda: backends["flat"].attend(0, q, k, v),
        "plain": plain,
        "copy": copy_bandwidth(1 << 26),
    }
    return interleaved(runs, rounds)


def main() -> None:
    """Measure some shapes; the first is the bar's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(f"{'sequences':>9} {'shared':>7} {'cascade':>9} {'/ plain':>8} {'flat / it':>9}   flat reads / copy rate")
    for sequences, shared in ((32, 4096), (16, 1024), (8, 768)):
        with torch.inference_mode():
            times = measure(sequences, shared, rounds)
        kv_bytes = sequences * shared * SPEC.num_kv_heads * SPEC.head_dim * 4
        share = kv_bytes / times["flat"] / ((1 << 26) / times["copy"])
        print(
            f"{sequences:>9} {shared:>7} {1e3 * times['cascade']:>6.2f} ms {times['cascade'] / times['plain']:>8.2f} "
            f"{times['flat'] / times['cascade']:>9.2f}   {share:.2f}"
        )
    print("bars for the first: / plain <= 1.5, flat / it >= 1.5")


if __name__ == "__main__":
    main()
