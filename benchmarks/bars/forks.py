"""Forks: 64 branches over a 1,024-token prefix, of which the first to end wins; and eight options scored at once.

Bars: the prefix is computed once; at most 2 threads in the client; leaving the block unlocks the losers' pages within 2 steps.
`select` over 8 options: one forward pass, log-probabilities equal to eight separate scorings within 1e-4 in float32.
"""

from __future__ import annotations

import threading
from typing import Any

import radixserve as rs
from benchmarks.load import settled_stats, words

NUM_BRANCHES, SHARED = 64, 1024
OPTIONS = [" Paris", " Lyon", " Marseille", " Nice", " the capital", " a city in the north", " unknown", " Berlin"]


@rs.function
def race(s: rs.State, prompt: str, losers_tokens: int) -> int:
    """The first of many branches; the others are left, if their answers are longer, in the middle of them. Threads that were added meanwhile."""
    before = threading.active_count() - 1  # the client's own I/O thread counts
    s += rs.user(prompt)
    with s.fork(NUM_BRANCHES) as branches:
        lengths = [8, *[losers_tokens] * (NUM_BRANCHES - 1)]
        answers = [branch.gen(max_tokens=length, ignore_eos=True) for branch, length in zip(branches, lengths, strict=True)]
        next(iter(rs.as_completed(answers))).text  # noqa: B018
        return threading.active_count() - before


@rs.function
def choose(s: rs.State, prompt: str, options: list[str]) -> list[float]:
    """Scores of the options, in their order."""
    s += rs.user(prompt)
    s += "The capital of France is"
    found = s.score(options, method="sum").value
    return [found[option] for option in options]


def _forks() -> list[tuple[str, str, str, bool]]:
    with rs.Engine(kv_tokens=65_536) as engine:
        client = engine.client
        prompt = words(client, SHARED, 3)
        figures: list[dict[str, Any]] = []
        threads = 0
        for losers_tokens in (8, 400):  # all end together; then the losers would go on for long
            client.query("reset_cache").result(30)
            before = settled_stats(client)
            threads = race.run(prompt, losers_tokens, engine=engine, seed=1).value
            after = settled_stats(client)
            figures.append(after | {name: after[name] - before[name] for name in ("num_steps", "num_prompt_tokens_computed")})
    together, left = figures
    computed, allowed = left["num_prompt_tokens_computed"], SHARED + 64 + NUM_BRANCHES * 2
    further = left["num_steps"] - together["num_steps"]
    return [
        ("forks: prompt tokens computed, 64 branches", f"{computed}", f"<= {allowed}", computed <= allowed),
        ("forks: threads of the client", f"{threads}", "<= 2", threads <= 2),
        (
            "forks: steps after the winner, pages locked then",
            f"{further}, {left['pages_locked']}",
            "<= 2, 0",
            further <= 2 and left["pages_locked"] == 0,
        ),
    ]


def _scores() -> list[tuple[str, str, str, bool]]:
    with rs.Engine(dtype="float32", kv_tokens=8192) as engine:
        client, prompt = engine.client, "Which city is the capital of France?"
        choose.run(prompt, OPTIONS[:1], engine=engine)
        before = settled_stats(client)
        together = choose.run(prompt, OPTIONS, engine=engine).value
        steps = settled_stats(client)["num_steps"] - before["num_steps"]
        apart = [choose.run(prompt, [option], engine=engine).value[0] for option in OPTIONS]
    error = max(abs(one - other) for one, other in zip(together, apart, strict=True))
    return [
        ("scores: forward passes of 8 options", f"{steps}", "1", steps == 1),
        ("scores: largest difference to separate scorings", f"{error:.1e}", "<= 1e-4", error <= 1e-4),
    ]


def main() -> list[tuple[str, str, str, bool]]:
    """Rows (name, figure, bar, passed)."""
    return [*_forks(), *_scores()]


if __name__ == "__main__":
    from benchmarks.bars.table import show

    show(main())
