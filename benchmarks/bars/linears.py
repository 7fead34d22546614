"""The yardstick of the overhead bar: all linears of one step of SmolLM2-135M, as oneDNN's packed operators, nothing else."""

from __future__ import annotations

import time

import torch

HIDDEN, QKV, MLP, VOCAB, LAYERS = 576, 960, 1536, 49_152, 30


def sum_of_linears(num_rows: int, repeats: int) -> list[float]:
    """Seconds of one step's linears and LM head at `num_rows` rows, `repeats` times. Every layer has weights of its own, as in the model."""
    pack = torch.ops.mkldnn._reorder_linear_weight
    run = torch.ops.mkldnn._linear_pointwise

    def make(n: int, k: int) -> torch.Tensor:
        return pack(torch.randn(n, k, dtype=torch.bfloat16), num_rows)

    layers = [(make(QKV, HIDDEN), make(HIDDEN, HIDDEN), make(2 * MLP, HIDDEN), make(HIDDEN, MLP)) for _ in range(LAYERS)]
    head = make(VOCAB, HIDDEN)
    x = torch.randn(num_rows, HIDDEN, dtype=torch.bfloat16)
    wide = torch.randn(num_rows, MLP, dtype=torch.bfloat16)
    times: list[float] = []
    with torch.inference_mode():
        for attempt in range(repeats + 3):
            began = time.perf_counter()
            for qkv, o, gate_up, down in layers:
                run(x, qkv, None, "none", [], "")
                run(x, o, None, "none", [], "")
                run(x, gate_up, None, "none", [], "")
                run(wide, down, None, "none", [], "")
            run(x, head, None, "none", [], "")
            if attempt >= 3:
                times.append(time.perf_counter() - began)
    return times
