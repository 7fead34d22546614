"""Stalls: a 4,000-token prompt arrives while eight streams decode.

Bar: the streams' p99 inter-token gap between its arrival and its first token <= 2.5 x their p99 before.
"""

from __future__ import annotations

import time

import radixserve as rs
from benchmarks.load import Call, percentile, run_calls, words
from radixserve_tokenizer.protocol import Sampling


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    with rs.Engine() as engine:
        client = engine.client
        run_calls(client, [Call([("user", "warm up")], Sampling(max_tokens=8))], 1)
        run_calls(client, [Call([("user", words(client, 1024, 9))], Sampling(max_tokens=8))], 1)
        streams = [
            Call(
                [("user", f"Write a long story about the number {i}.")],
                Sampling(max_tokens=1500, temperature=0.0, ignore_eos=True),
            )
            for i in range(8)
        ]
        long = Call([("user", words(client, 4000, 8))], Sampling(max_tokens=4, temperature=0.0))
        for stream in streams:
            stream.start(client)
        time.sleep(8.0)
        arrival = time.perf_counter()
        run_calls(client, [long], 1)
        first = long.arrivals_s[0]
        for stream in streams:
            stream.stop()
    settled = arrival - 5.0
    before = [g for s in streams for g, t in zip(s.gaps_s, s.arrivals_s[1:], strict=True) if settled <= t < arrival]
    during = [g for s in streams for g, t in zip(s.gaps_s, s.arrivals_s[1:], strict=True) if arrival <= t <= first]
    p_before, p_during = percentile(before, 0.99), percentile(during, 0.99)
    return [
        (
            "stalls: p99 gap during / before",
            f"{p_during / p_before:.2f} ({1e3 * p_during:.0f} / {1e3 * p_before:.0f} ms; its TTFT {long.ttft_s:.1f} s)",
            "<= 2.5",
            p_during <= 2.5 * p_before,
        )
    ]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
