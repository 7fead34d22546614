"""Faults: kill -9 the runtime in mid-stream, then the tokenizer process.

Bars: every client has a clear error or a correct continuation within 5 s, and new requests work within 15 s.
"""

from __future__ import annotations

import os
import signal
import time

import radixserve as rs
from benchmarks.load import Call, run_calls
from radixserve_tokenizer.protocol import Sampling


def _kill(engine: rs.Engine, name: str) -> list[tuple[str, str, str, bool]]:
    client = engine.client
    calls = [
        Call([("user", f"Write a story about {i}.")], Sampling(max_tokens=2000, temperature=0.0, ignore_eos=True))
        for i in range(4)
    ]
    for call in calls:
        call.start(client)
    while not all(call.arrivals_s for call in calls):
        time.sleep(0.05)
    killed = time.monotonic()
    os.kill(engine.supervisor.pids[name], signal.SIGKILL)
    told = all(call.ended.wait(max(0.0, killed + 5 - time.monotonic())) for call in calls)
    told_s = time.monotonic() - killed
    works_s = float("inf")
    while time.monotonic() - killed < 60:
        call = Call([("user", "Hello")], Sampling(max_tokens=4))
        try:
            run_calls(client, [call], 1, timeout_s=30)
        except Exception:
            time.sleep(0.2)
            continue
        works_s = time.monotonic() - killed
        break
    errors = sorted({call.error for call in calls})
    return [
        (f"faults: {name} killed, clients told", f"{told_s:.1f} s: {'; '.join(errors)}", "<= 5 s", told and all(errors)),
        (f"faults: {name} killed, new requests work", f"{works_s:.1f} s", "<= 15 s", works_s <= 15),
    ]


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    with rs.Engine() as engine:
        run_calls(engine.client, [Call([("user", "warm up")], Sampling(max_tokens=8))], 1)
        return _kill(engine, "runtime") + _kill(engine, "tokenizer")


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
