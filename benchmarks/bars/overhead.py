"""Overhead: a decode step at batch 16 and context 256 against the bare sum of its packed linears and LM head.

Bar: <= 1.5 x. Both in one process and one run, in turn; the engine's own core is driven without sockets.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.bars.linears import sum_of_linears
from radixserve.models import resolve
from radixserve_runtime.config import RuntimeConfig
from radixserve_runtime.engine.build import build_core
from radixserve_runtime.protocol import Base, Generate, Hello, Sampling

BATCH, CONTEXT, STEPS, ROUNDS = 16, 256, 24, 3


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    torch.set_num_threads(2)
    core = build_core(
        RuntimeConfig(model=str(resolve("smollm2-135m")), socket="ipc://unused", max_running=BATCH, prompt_lookup=False)
    )
    core.handle(Hello(version=1, fingerprint="bench", vocabulary=tuple(b"x" for _ in range(49_152)), eos_token_ids=(2,)))
    steps: list[float] = []
    linears: list[float] = []
    for round_ in range(ROUNDS):
        for request in range(BATCH):
            core.handle(
                Generate(
                    request_id=1 + request + 100 * round_,
                    branch_id=1 + request + 100 * round_,
                    base=Base(new_ids=tuple(5 + (7 * i + 13 * request + round_) % 40_000 for i in range(CONTEXT))),
                    sampling=Sampling(max_tokens=STEPS + 20, seed=1, temperature=0.0, ignore_eos=True),
                )
            )
        while core.stats().num_waiting or any_prefill(core):
            core.step()
        for _ in range(STEPS):
            began = time.perf_counter()
            core.step()
            core.take_events()
            steps.append(time.perf_counter() - began)
        while core.has_work:
            core.step()
        linears += sum_of_linears(BATCH, repeats=STEPS)
    step_ms, linear_ms = 1e3 * statistics.median(steps), 1e3 * statistics.median(linears)
    return [
        (
            "overhead: decode step / packed linears",
            f"{step_ms / linear_ms:.2f} ({step_ms:.1f} / {linear_ms:.1f} ms)",
            "<= 1.5",
            step_ms <= 1.5 * linear_ms,
        )
    ]


def any_prefill(core: object) -> bool:
    """Whether a running sequence still has prompt to compute."""
    sequences = core._requests.sequences  # type: ignore[attr-defined]
    return any(sequence.num_uncomputed > 1 or sequence.num_output_tokens == 0 for sequence in sequences)


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
