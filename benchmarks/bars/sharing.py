"""Sharing: 64 chats over one 1,024-token system prompt, 32-token turns, 32 tokens out, 16 at a time, from a cold cache.

Bars: prompt tokens computed <= 1,024 + 64 x (own tokens + 16); wall time <= 1.5 x (computed prompt tokens / measured
prefill rate + measured decode time); >= 5 times faster than without the prefix cache.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import radixserve as rs
from benchmarks.load import Call, run_calls, settled_stats, words
from radixserve_tokenizer.protocol import Sampling

if TYPE_CHECKING:
    from radixserve_lang.client import Client

NUM_CHATS, AT_A_TIME, SHARED, OWN, OUT = 64, 16, 1024, 32, 32


def _chats(client: Client, seed: int) -> list[Call]:
    system = words(client, SHARED, seed)
    return [
        Call(
            [("system", system), ("user", words(client, OWN, 1000 * seed + index))],
            Sampling(max_tokens=OUT, temperature=0.0, ignore_eos=True),
        )
        for index in range(NUM_CHATS)
    ]


def prefill_rate(client: Client) -> float:
    """Prompt tokens a second of cold 1,024-token prompts, one at a time: median of three."""
    rates = []
    for seed in range(3):
        call = Call([("user", words(client, SHARED, 77_000 + seed))], Sampling(max_tokens=1, temperature=0.0))
        wall_s = run_calls(client, [call], 1)
        assert call.done is not None
        rates.append(call.done.usage.prompt_tokens / wall_s)
    return statistics.median(rates)


def decode_s(client: Client) -> float:
    """Seconds that four waves of 16 x 32 decode steps take when the prompt is short: the decode share of the workload."""
    calls = [
        Call([("user", f"Count: {index}")], Sampling(max_tokens=4 * OUT, temperature=0.0, ignore_eos=True))
        for index in range(AT_A_TIME)
    ]
    return run_calls(client, calls, AT_A_TIME)


def measure(prefix_cache: bool, **settings: Any) -> dict[str, float]:
    """One engine, one run."""
    with rs.Engine(prefix_cache=prefix_cache, **settings) as engine:
        client = engine.client
        run_calls(client, [Call([("user", "warm up")], Sampling(max_tokens=8))], 1)
        rate, decode = prefill_rate(client), decode_s(client)
        chats = _chats(client, 5)
        client.query("reset_cache").result(30)
        before = settled_stats(client)
        wall_s = run_calls(client, chats, AT_A_TIME)
        after = settled_stats(client)
        first = chats[0].done
        assert first is not None
        own = first.usage.prompt_tokens - SHARED
        return {
            "wall_s": wall_s,
            "computed": after["num_prompt_tokens_computed"] - before["num_prompt_tokens_computed"],
            "num_steps": after["num_steps"] - before["num_steps"],
            "own_tokens": own,
            "prefill_rate": rate,
            "decode_s": decode,
            "tokens_per_s": NUM_CHATS * OUT / wall_s,
            "ttft_max_s": max(call.ttft_s for call in chats),
        }


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    shared = measure(True)
    time.sleep(1)
    plain = measure(False)
    allowed = SHARED + NUM_CHATS * (shared["own_tokens"] + 16)
    ideal_s = shared["computed"] / shared["prefill_rate"] + shared["decode_s"]
    faster = plain["wall_s"] / shared["wall_s"]
    return [
        ("sharing: prompt tokens computed", f"{shared['computed']:.0f}", f"<= {allowed:.0f}", shared["computed"] <= allowed),
        (
            "sharing: wall / (prefill + decode)",
            f"{shared['wall_s'] / ideal_s:.2f} ({shared['wall_s']:.1f} s of {ideal_s:.1f} s; {shared['tokens_per_s']:.0f} tok/s)",
            "<= 1.5",
            shared["wall_s"] <= 1.5 * ideal_s,
        ),
        ("sharing: against --no-prefix-cache", f"{faster:.1f}x ({plain['wall_s']:.1f} s)", ">= 5x", faster >= 5),
    ]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
