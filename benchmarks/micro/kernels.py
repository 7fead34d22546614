"""Kernels of a step beside what the machine can do: attention and the fused operators by the memory they touch, prefill by its products.

    python -m benchmarks.micro.kernels [--backend auto] [--rounds 15]

Shapes are SmolLM2-135M's. "of the limit" is bytes touched a second by the copy rate, or operations a second by the largest rate of a
square bfloat16 product, both measured in turn with the kernels. A figure above 100 % means that caches helped. The linears of a
decode step and the cascade have programs of their own (linears.py, cascade.py).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from benchmarks.micro.pairs import copy_bandwidth, interleaved
from radixserve_kernels.interface import AttentionSpec, RaggedBatch
from radixserve_kernels.registry import BACKENDS, load_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_kernels.interface import Backend

SPEC = AttentionSpec(num_layers=1, num_q_heads=9, num_kv_heads=3, head_dim=64, scale=64**-0.5)
HIDDEN, MLP, PAGE, SIDE, COPIED = 576, 1536, 16, 1024, 1 << 26


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel call, and what it needs at least: bytes through memory, or operations."""

    name: str
    run: Callable[[], object]
    num_bytes: float = 0.0
    num_operations: float = 0.0


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def ragged(new: list[int], context: list[int]) -> tuple[RaggedBatch, int]:
    """Sequences of `context` tokens each, of which the last `new` are this step's; none shares a page. And the number of pages."""
    starts, first_pages, pages, positions, slots = [0], [0], 0, [], []
    for fresh, length in zip(new, context, strict=True):
        starts.append(starts[-1] + fresh)
        here = range(length - fresh, length)
        positions += here
        slots += [(pages + place // PAGE) * PAGE + place % PAGE for place in here]
        pages += -(-length // PAGE)
        first_pages.append(pages)
    batch = RaggedBatch(
        qo_indptr=_int32(starts),
        kv_len=_int32(context),
        page_indptr=_int32(first_pages),
        page_indices=_int32(list(range(pages))),
        positions=_int32(positions),
        slots=_int32(slots),
        page_size_tokens=PAGE,
    )
    return batch, pages


def attention(name: str, make: Callable[[], Backend], new: list[int], context: list[int]) -> Case:
    """One layer's attention. Decode is bound by the KV it reads, prefill by its two products."""
    batch, pages = ragged(new, context)
    backend = make()
    backend.allocate_kv(pages, PAGE, torch.bfloat16)
    backend.prepare(batch)
    heads, kv_heads, dim = SPEC.num_q_heads, SPEC.num_kv_heads, SPEC.head_dim
    q, k, v = torch.randn(sum(new), heads + 2 * kv_heads, dim).bfloat16().split([heads, kv_heads, kv_heads], dim=1)
    pairs = sum(fresh * (length - (fresh - 1) / 2) for fresh, length in zip(new, context, strict=True))
    return Case(
        name,
        lambda: backend.attend(0, q, k, v),
        num_bytes=sum(context) * 2 * kv_heads * dim * 2 if max(new) == 1 else 0.0,
        num_operations=pairs * heads * dim * 4 if max(new) > 1 else 0.0,
    )


def cases(make: Callable[[], Backend]) -> list[Case]:
    """All of them."""
    backend = make()
    found = [
        attention("attention: 16 decodes after 256", make, [1] * 16, [256] * 16),
        attention("attention: 16 decodes after 1,024", make, [1] * 16, [1024] * 16),
        attention("attention: prefill of 512 after 512", make, [512], [1024]),
    ]
    weight = torch.ones(HIDDEN, dtype=torch.bfloat16)
    for rows in (16, 512):
        x, residual = torch.randn(rows, HIDDEN).bfloat16(), torch.randn(rows, HIDDEN).bfloat16()
        gate_up = torch.randn(rows, 2 * MLP).bfloat16()
        found += [
            # Clones: the operator may overwrite its inputs, and values that grow without end would not be a model's.
            Case(
                f"residual + norm: {rows} rows",
                lambda x=x, residual=residual: backend.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5),
                num_bytes=rows * HIDDEN * 2 * 8,
            ),
            Case(
                f"silu x up: {rows} rows",
                lambda gate_up=gate_up: backend.silu_mul(gate_up),
                num_bytes=rows * MLP * 2 * 3,
            ),
        ]
    for name, n, k in (("qkv", 960, HIDDEN), ("gate and up", 2 * MLP, HIDDEN), ("down", HIDDEN, MLP)):
        linear = backend.pack_linear((torch.randn(n, k) * 0.05).bfloat16(), None)
        x = torch.randn(512, k).bfloat16()
        found.append(Case(f"linear {name}: 512 rows", lambda linear=linear, x=x: linear(x), num_operations=2 * 512 * n * k))
    return found


def measure(make: Callable[[], Backend], rounds: int) -> list[tuple[str, float, float]]:
    """(name, seconds, share of the limit) of each case."""
    todo = cases(make)
    square = torch.randn(SIDE, SIDE).bfloat16()
    runs: dict[str, Callable[[], object]] = {case.name: case.run for case in todo}
    with torch.inference_mode():
        times = interleaved({**runs, "copy": copy_bandwidth(COPIED), "square": lambda: square @ square}, rounds)
    bytes_per_s, operations_per_s = COPIED / times["copy"], 2 * SIDE**3 / times["square"]
    return [
        (
            case.name,
            times[case.name],
            max(case.num_bytes / bytes_per_s, case.num_operations / operations_per_s) / times[case.name],
        )
        for case in todo
    ]


def main() -> None:
    """One line a kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    backend = load_backend(options.backend, SPEC)
    print(f"backend {backend.name}, {torch.get_num_threads()} threads")
    for name, seconds, share in measure(lambda: load_backend(options.backend, SPEC), options.rounds):
        print(f"{name:38}{1e6 * seconds:>10.1f} us{share:>8.0%} of the limit")


if __name__ == "__main__":
    main()
