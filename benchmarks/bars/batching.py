"""Batching: 32 requests, three quarters of 16 and one quarter of 256 output tokens, eight slots.

Bar: steps of static over steps of continuous batching >= 85 % of the ideal ratio. Ideal: static runs four batches of
eight, each as long as its longest; continuous needs the tokens divided by the slots, or the longest request.
"""

from __future__ import annotations

import random

import radixserve as rs
from benchmarks.load import Call, run_calls, settled_stats
from radixserve_tokenizer.protocol import Sampling

SLOTS = 8


def _lengths() -> list[int]:
    lengths = [16] * 24 + [256] * 8
    random.Random(3).shuffle(lengths)
    return lengths


def _run(schedule: str) -> tuple[int, float]:
    # Without guesses: the ideal is that of a step for each token.
    with rs.Engine(schedule=schedule, max_running=SLOTS, max_queue_delay_ms=2000.0, prompt_lookup=False) as engine:
        calls = [
            Call([("user", f"Tell me about the number {index}.")], Sampling(max_tokens=n, temperature=0.0, ignore_eos=True))
            for index, n in enumerate(_lengths())
        ]
        run_calls(engine.client, [Call([("user", "warm up")], Sampling(max_tokens=2))], 1)
        before = settled_stats(engine.client)
        wall_s = run_calls(engine.client, calls, len(calls))
        return settled_stats(engine.client)["num_steps"] - before["num_steps"], wall_s


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    lengths = _lengths()
    static_steps, static_s = _run("static")
    continuous_steps, continuous_s = _run("continuous")
    ideal_static = sum(max(lengths[i : i + SLOTS]) for i in range(0, len(lengths), SLOTS))
    ideal_continuous = max(max(lengths), sum(lengths) / SLOTS)
    ideal = ideal_static / ideal_continuous
    ratio = static_steps / continuous_steps
    return [
        (
            "batching: steps static / continuous",
            f"{ratio:.2f} = {ratio / ideal:.0%} of ideal {ideal:.2f} ({static_steps} / {continuous_steps} steps; "
            f"{static_s:.1f} / {continuous_s:.1f} s)",
            ">= 85 % of ideal",
            ratio >= 0.85 * ideal,
        )
    ]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
