"""Pressure: a pool for about three requests, thirty at once, some of them left by their client.

Bar: all end, and afterwards free + cached == total with nothing locked.
"""

from __future__ import annotations

import time

import radixserve as rs
from benchmarks.load import Call, settled_stats, words
from radixserve_tokenizer.protocol import Sampling


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    with rs.Engine(kv_tokens=1024) as engine:
        client = engine.client
        calls = [
            Call([("user", words(client, 250, index))], Sampling(max_tokens=64, temperature=0.0, ignore_eos=True))
            for index in range(30)
        ]
        for call in calls:
            call.start(client)
        time.sleep(2.0)
        for call in calls[::7]:
            call.stop()
        deadline = time.monotonic() + 180
        ended = all(call.ended.wait(max(0.0, deadline - time.monotonic())) for call in calls)
        right = sum(1 for call in calls if call.done is not None and len(call.done.token_ids) == 64)
        end = settled_stats(client)
    balanced = end["pages_free"] + end["pages_cached"] == end["pages_total"] and end["pages_locked"] == 0
    return [
        (
            "pressure: all end",
            f"{right} whole, {30 - right} left by their client, {end['num_preemptions']} preemptions",
            "all",
            ended,
        ),
        (
            "pressure: pages afterwards",
            f"{end['pages_free']} free + {end['pages_cached']} cached of {end['pages_total']}, {end['pages_locked']} locked",
            "nothing locked",
            balanced,
        ),
    ]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
