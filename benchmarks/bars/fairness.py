"""Fairness on the real engine: two backlogged tenants, one of which sends ten times more and longer prompts, for 60 s.

Bars: equal weights give a charge ratio within 1 +- 0.1, weights 3:1 give 3 +- 0.3; a light tenant's p99 TTFT is at most
1.5 times its p99 when the heavy tenant is replaced by an ordinary one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.bars.tenancy import call, engine_with
from benchmarks.load import Flood, percentile, stats

if TYPE_CHECKING:
    import radixserve as rs

WINDOW_S, WARM_S, SLOTS = 60.0, 5.0, 16


def _charges(engine: rs.Engine) -> dict[str, float]:
    return {name: row["charge"] for name, row in stats(engine.client)["tenants"].items()}


def _ratio(weight: float, window_s: float) -> tuple[float, str]:
    """Charge of "steady" over charge of "heavy" within the window; "steady" has the weight."""
    with engine_with({"steady": weight, "heavy": 1.0}, max_running=SLOTS, max_queued=2048) as engine:
        floods = [
            Flood(engine.client, 16, lambda i: call("steady", i, 60, 48)),
            Flood(engine.client, 160, lambda i: call("heavy", i, 240, 48)),
        ]
        time.sleep(WARM_S)
        before = _charges(engine)
        time.sleep(window_s)
        after = _charges(engine)
        for flood in floods:
            flood.stop()
        problems = [error for flood in floods for error in flood.errors]
        assert not problems, problems[0]
        gained = {name: after[name] - before[name] for name in ("steady", "heavy")}
        note = f"{gained['steady']:.0f} / {gained['heavy']:.0f} units; {floods[0].num_done} and {floods[1].num_done} answers"
        return gained["steady"] / gained["heavy"], note


def _light_p99(neighbour: str, window_s: float) -> float:
    """p99 TTFT of a tenant that asks one thing at a time, beside a heavy or an ordinary backlogged tenant."""
    settings: dict[str, Any] = {"max_running": SLOTS, "max_queued": 2048}
    with engine_with({"light": 1.0, "other": 1.0}, **settings) as engine:
        flood = (
            Flood(engine.client, 160, lambda i: call("other", i, 240, 48))
            if neighbour == "heavy"
            else Flood(engine.client, 16, lambda i: call("other", i, 60, 48))
        )
        time.sleep(WARM_S)
        waits: list[float] = []
        started = time.monotonic()
        while time.monotonic() - started < window_s:
            one = call("light", len(waits), 30, 8)
            one.start(engine.client)
            assert one.ended.wait(60), "a light tenant's request did not end"
            assert not one.error, one.error
            waits.append(one.ttft_s)
            one.channel.close()
            time.sleep(0.2)
        flood.stop()
        return percentile(waits, 0.99)


def main(window_s: float = WINDOW_S) -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    equal, equal_note = _ratio(1.0, window_s)
    three, three_note = _ratio(3.0, window_s)
    heavy, ordinary = _light_p99("heavy", window_s), _light_p99("ordinary", window_s)
    return [
        ("fairness: charge ratio, equal weights", f"{equal:.3f} ({equal_note})", "1 +- 0.1", abs(equal - 1) <= 0.1),
        ("fairness: charge ratio, weights 3:1", f"{three:.3f} ({three_note})", "3 +- 0.3", abs(three - 3) <= 0.3),
        (
            "fairness: light tenant's p99 TTFT, heavy / ordinary neighbour",
            f"{heavy / ordinary:.2f} ({1e3 * heavy:.0f} / {1e3 * ordinary:.0f} ms)",
            "<= 1.5",
            heavy <= 1.5 * ordinary,
        ),
    ]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
