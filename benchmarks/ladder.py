"""One rung after another on one engine, in one run: what each idea of serving is worth on agent work.

    python -m benchmarks.ladder [--trace ../traces/agent_traces.jsonl] [--json FILE]

The runtime's core is driven without sockets, so nothing but the engine is measured. Agents of several turns over one preamble
(inprocess/agents.py says with which lengths) all begin at once; each sends its next turn when the last is answered. "allowed" is
the share of the tokens/s that the counted work allows (inprocess/bound.py says how it is counted).
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.inprocess.agents import Sizes, make_agents
from benchmarks.inprocess.bound import least_work, measure_rates, typical_context
from benchmarks.inprocess.drive import greet, live
from benchmarks.load import percentile
from benchmarks.machine import measure_limits
from radixserve.models import resolve
from radixserve_kernels.cpu.backend import CpuBackend
from radixserve_runtime.config import RuntimeConfig
from radixserve_runtime.engine.build import build_core

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.inprocess.agents import AgentWork
    from benchmarks.inprocess.bound import Work

#: A step without chunked prefill takes every prompt whole.
WHOLE = 1 << 20


@dataclass(frozen=True, slots=True)
class Rung:
    """A set of runtime settings. Each has all that the ones before it have."""

    name: str
    settings: dict[str, Any]
    cascade: bool = False


def rungs(slots: int, delay_ms: float = 50.0) -> list[Rung]:
    """From the bottom. Without guesses, as a step for each token is counted: the agents' made-up prompts are answered in loops, which are guessed."""
    common: dict[str, Any] = {"max_running": slots, "prompt_lookup": False}
    plain: dict[str, Any] = {**common, "prefix_cache": False, "max_batch_tokens": WHOLE, "itl_target_ms": 1e9}
    chunked: dict[str, Any] = {**common, "prefix_cache": False}
    cached: dict[str, Any] = common
    return [
        Rung("one at a time", {**plain, "max_running": 1}),
        Rung("static", {**plain, "schedule": "static", "max_queue_delay_ms": delay_ms}),
        Rung("dynamic", {**plain, "schedule": "dynamic", "max_queue_delay_ms": delay_ms}),
        Rung("continuous", plain),
        Rung("+ chunked prefill", chunked),
        Rung("+ radix cache", cached),
        Rung("+ cascade", cached, cascade=True),
        Rung("+ int8", {**cached, "quantization": "int8"}, cascade=True),
    ]


def why_not(rung: Rung) -> str:
    """Why this build can't climb it; empty when it can."""
    unknown = set(rung.settings) - set(RuntimeConfig.__struct_fields__)
    if unknown:
        return f"not available: no setting {', '.join(sorted(unknown))}"
    if rung.cascade and not _knows_cascade():
        return "not available: the cpu kernels have no cascade"
    return ""


def _knows_cascade() -> bool:
    return "cascade" in inspect.signature(CpuBackend).parameters


@contextmanager
def _cascade(on: bool) -> Iterator[None]:
    """Backends that are made within have it on or off. It is no setting of the engine, as nobody but this ladder wants it off."""
    defaults: dict[str, Any] = CpuBackend.__init__.__kwdefaults__ or {}
    if "cascade" not in defaults:
        yield
        return
    before, defaults["cascade"] = defaults["cascade"], on
    try:
        yield
    finally:
        defaults["cascade"] = before


def climb(
    rung: Rung, model: str, agents: Sequence[AgentWork], work: Work, slots: int, vocab_size: int, **settings: Any
) -> dict[str, Any]:
    """Build the engine of a rung, measure its rates, and run the agents on it."""
    with _cascade(rung.cascade):
        core = build_core(RuntimeConfig(model=model, socket="ipc://unused", **{**settings, **rung.settings}))
    greet(core, vocab_size)
    at_once = 1 if rung.settings["max_running"] == 1 else slots
    # Static and dynamic batching would wait for company; their rates are those of the engine that they are modes of.
    rates = None
    if "schedule" not in rung.settings:
        rates = measure_rates(core, at_once, len(agents[0].preamble), typical_context(agents), vocab_size)
    outcome = live(core, agents)
    del core
    gc.collect()
    tokens_per_s = outcome.num_output_tokens / outcome.wall_s
    return {
        "rung": rung.name,
        "tokens_per_s": tokens_per_s,
        "wall_s": outcome.wall_s,
        "queued_p99_s": percentile(outcome.queued_s, 0.99),
        "waste": outcome.waste,
        "num_forward_passes": outcome.num_forward_passes,
        "num_tokens_computed": outcome.num_tokens_computed,
        "num_prompt_tokens_computed": outcome.num_prompt_tokens_computed,
        "num_output_tokens": outcome.num_output_tokens,
        "num_preemptions": outcome.num_preemptions,
        "allowed_s": None if rates is None else rates.seconds(work),
        "share_of_allowed": None if rates is None else rates.seconds(work) / outcome.wall_s,
        "prefill_tokens_per_s": None if rates is None else rates.prefill_tokens_per_s,
        "step_s": None if rates is None else rates.step_s,
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The highest rung against static, and the bars."""
    climbed = {row["rung"]: row for row in rows if "wall_s" in row}
    # The top in the model's own precision: another precision is another model.
    top = next((climbed[name] for name in ("+ cascade", "+ radix cache") if name in climbed), None)
    static = climbed.get("static")
    if top is None or static is None:
        return []
    less = 1 - top["queued_p99_s"] / max(static["queued_p99_s"], 1e-9)
    return [
        f"{top['rung']} / static: {top['tokens_per_s'] / static['tokens_per_s']:.2f}x tokens/s",
        f"share of what the counted work allows: {top['share_of_allowed']:.0%} (bar 80 %)",
        f"p99 queueing: {less:.0%} less than static (bar 70 %)",
        f"KV pool waste: {top['waste']:.1%} (bar 4 %)",
    ]


def show(rows: Sequence[dict[str, Any]]) -> Table:
    """The ladder as a table, the bottom first."""
    table = Table("rung", title="agents of several turns over one preamble", title_justify="left")
    for name in ("tok/s", "p99 queued", "KV waste", "forward passes", "tokens computed", "of them prompt", "allowed"):
        table.add_column(name, justify="right")
    for row in rows:
        if "wall_s" not in row:
            table.add_row(row["rung"], row["why_not"])
            continue
        share = row["share_of_allowed"]
        table.add_row(
            row["rung"],
            f"{row['tokens_per_s']:.1f}",
            f"{row['queued_p99_s']:.2f} s",
            f"{row['waste']:.1%}",
            f"{row['num_forward_passes']:,}",
            f"{row['num_tokens_computed']:,}",
            f"{row['num_prompt_tokens_computed']:,}",
            "-" if share is None else f"{share:.0%}",
        )
    return table


def main() -> None:
    """Climb."""
    usual = Sizes()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--trace", type=Path, help="recorded agent sessions; without it lengths are drawn like theirs")
    parser.add_argument("--agents", type=int, default=usual.agents)
    parser.add_argument("--turns", type=int, default=usual.turns)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument(
        "--delay-ms", type=float, default=50.0, help="static and dynamic: how long the first one waits for company"
    )
    parser.add_argument("--scale-length", type=float, default=usual.scale)
    parser.add_argument("--scale-output", type=float, default=usual.scale_output)
    parser.add_argument("--vocab-size", type=int, default=49_152)
    parser.add_argument("--rungs", nargs="*", help="only these (by number from 1)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = Sizes(options.agents, options.turns, options.scale_length, options.scale_output)
    agents = make_agents(sizes, options.vocab_size, options.trace)
    work = least_work(agents, options.slots)
    out = Console(highlight=False, width=140)
    limits = measure_limits()
    out.print(
        f"{len(agents)} agents, {sum(len(one.turns) for one in agents)} turns, {options.slots} slots, preamble {len(agents[0].preamble)}"
    )
    out.print(f"least work: {work.prompt_tokens:,} prompt tokens, {work.num_steps:,} decode steps; the machine {limits}")
    rows: list[dict[str, Any]] = []
    for number, rung in enumerate(rungs(options.slots, options.delay_ms), 1):
        if options.rungs and str(number) not in options.rungs:
            continue
        reason = why_not(rung)
        model = str(resolve(options.model))
        rows.append(
            {"rung": rung.name, "why_not": reason}
            if reason
            else climb(rung, model, agents, work, options.slots, options.vocab_size)
        )
        out.print(f"{rung.name}: {reason or format(rows[-1]['tokens_per_s'], '.1f') + ' tokens/s'}")
    out.print(show(rows))
    for line in summary(rows):
        out.print(line)
    if options.json:
        options.json.write_text(json.dumps({"limits": str(limits), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
