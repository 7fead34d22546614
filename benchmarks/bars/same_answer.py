"""Same answer: greedy output in float32, real model, must not depend on anything around a request.

Bar: identical tokens with the cache on or off, chunks of 16, 64 or whole, pages of 1 or 16, alone or among 15 others,
after preemption, over HTTP or DSL.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

import radixserve as rs
from benchmarks.load import WORDS, Call, run_calls, settled_stats
from radixserve_tokenizer.protocol import Sampling

COUNT, OUT = 16, 96
SETTINGS: dict[str, dict[str, Any]] = {
    "cache on": {},
    "cache off": {"prefix_cache": False},
    "chunks of 16": {"max_batch_tokens": 16},
    "chunks of 64": {"max_batch_tokens": 64},
    "pages of 1": {"page_size": 1},
    "after preemption": {"kv_tokens": 1280},
    "after preemption, cache off": {"kv_tokens": 1280, "prefix_cache": False},
}


def _questions() -> list[str]:
    rng = random.Random(11)
    start = " ".join(rng.choice(WORDS) for _ in range(60))
    return [f"{start}. {' '.join(rng.choice(WORDS) for _ in range(20 + 6 * i))}. Tell me about it." for i in range(COUNT)]


def _ask(engine: rs.Engine, concurrency: int) -> list[str]:
    calls = [
        Call([("user", question)], Sampling(max_tokens=OUT, temperature=0.0, ignore_eos=True), stream=False)
        for question in _questions()
    ]
    run_calls(engine.client, calls, concurrency)
    return [call.done.value for call in calls if call.done is not None]


def _over_http() -> list[str]:
    port = 18_471
    process = subprocess.Popen(
        [sys.executable, "-m", "radixserve.cli", "serve", "--dtype", "float32", "--port", str(port), "--log-level", "error"],
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as http:
            while True:
                try:
                    if http.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.2)

            def ask(question: str) -> str:
                body = {
                    "messages": [{"role": "user", "content": question}],
                    "max_tokens": OUT,
                    "temperature": 0,
                    "ignore_eos": True,
                }
                return str(http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])

            with ThreadPoolExecutor(COUNT) as pool:
                return list(pool.map(ask, _questions()))
    finally:
        process.terminate()
        process.wait()


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    with rs.Engine(dtype="float32", prefix_cache=False, max_batch_tokens=4096, log_level="error") as engine:
        alone = _ask(engine, 1)
    rows: list[tuple[str, str, str, bool]] = []

    def compare(name: str, got: list[str], note: str = "", *, valid: bool = True) -> None:
        equal = sum(a == b for a, b in zip(alone, got, strict=True))
        rows.append((f"same answer: {name}", f"{equal} of {COUNT} equal to alone{note}", "all", equal == COUNT and valid))

    for name, settings in SETTINGS.items():
        with rs.Engine(dtype="float32", log_level="error", **settings) as engine:
            got = _ask(engine, COUNT)
            preempted = settled_stats(engine.client)["num_preemptions"]
        wanted = name.startswith("after")
        compare(f"{name}, 16 at once", got, f", {preempted} preemptions" if wanted else "", valid=not wanted or preempted > 0)
    compare("over HTTP, 16 at once", _over_http())
    return rows


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
