"""Priority: interactive requests of a tenant under its own flood of background work.

Bar: interactive p99 TTFT <= its unloaded p99 + two median steps, and the background work still ends.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.bars.tenancy import call, engine_with
from benchmarks.load import Flood, percentile, stats

if TYPE_CHECKING:
    import radixserve as rs

COUNT, SLOTS = 60, 16


def _interactive(engine: rs.Engine, first: int) -> list[float]:
    waits: list[float] = []
    for index in range(first, first + COUNT):
        one = call("a", index, 30, 8, "interactive")
        one.start(engine.client)
        assert one.ended.wait(60), "an interactive request did not end"
        assert not one.error, one.error
        waits.append(one.ttft_s)
        one.channel.close()
        time.sleep(0.1)
    return waits


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    with engine_with({"a": 1.0}, max_running=SLOTS) as engine:
        _interactive(engine, 0)
        alone = percentile(_interactive(engine, 1000), 0.99)
        flood = Flood(engine.client, 64, lambda i: call("a", i, 120, 64, "background"))
        time.sleep(5)
        before, began = stats(engine.client), time.monotonic()
        loaded = percentile(_interactive(engine, 2000), 0.99)
        after = stats(engine.client)
        step_s = (time.monotonic() - began) / (after["num_steps"] - before["num_steps"])
        done_before = flood.num_done
        time.sleep(10)
        ended = flood.num_done - done_before
        flood.stop()
    return [
        (
            "priority: interactive p99 TTFT under a background flood",
            f"{1e3 * loaded:.0f} ms, alone {1e3 * alone:.0f} ms, a step {1e3 * step_s:.0f} ms",
            "<= alone + 2 steps",
            loaded <= alone + 2 * step_s,
        ),
        ("priority: background work ends", f"{ended} in 10 s", "> 0", ended > 0),
    ]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
