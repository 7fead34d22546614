"""Agents: conversations that grow by a turn after each answer, over a preamble that all of them share."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from radixserve.bench.ask import Output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from radixserve.bench.run import Run


@dataclass(frozen=True, slots=True)
class _Agent:
    preamble: str
    observations: list[str]


def _agents(run: Run) -> list[_Agent]:
    shape = run.shape
    preamble = run.text(shape.shared_tokens)
    return [_Agent(preamble, [run.text(shape.prompt_tokens) for _ in range(shape.turns)]) for _ in range(shape.requests)]


async def _live(run: Run, agent: _Agent, pause_s: float, key: int = 0) -> None:
    """All turns of one agent; it gives up at the first that fails."""
    output = Output(run.shape.output_tokens)
    conversation = run.target.converse(key)
    try:
        for turn, observation in enumerate(agent.observations):
            if turn and pause_s:
                await asyncio.sleep(pause_s)
            said = [("user", observation)] if turn else [("system", agent.preamble), ("user", observation)]
            outcome = await run.say(conversation, said, output, f"turn {turn + 1}")
            if outcome.error:
                for later in range(turn + 1, len(agent.observations)):
                    run.lose(output, "not sent: an earlier turn of its agent failed", f"turn {later + 1}", key)
                return
    finally:
        await conversation.close()


def _by_turn(run: Run) -> None:
    """What later turns find: median time to the first text, and the share of the prompt that was cached."""
    labels = [f"turn {turn + 1}" for turn in range(run.shape.turns)]
    rows = [[one for one in run.outcomes if one.label == label and not one.error] for label in labels]
    ttft = [[one.ttft_s for one in row if one.ttft_s is not None] for row in rows]
    run.extras["ttft_s_by_turn"] = [statistics.median(row) if row else None for row in ttft]
    cached = [[one.cached_tokens for one in row if one.cached_tokens is not None] for row in rows]
    run.extras["cached_tokens_by_turn"] = [statistics.mean(row) if row else None for row in cached]


async def agents(run: Run) -> None:
    """`requests` agents, `concurrency` at a time, each turn sent as soon as the last is answered."""
    await run.all([partial(_live, run, agent, 0.0) for agent in _agents(run)], run.shape.concurrency)
    _by_turn(run)


async def poisson(run: Run) -> None:
    """Agents that arrive at random, `rate` in a second, whatever runs; each thinks for `think_s` between its turns."""
    shape, source = run.shape, run.source
    waits = [source.expovariate(shape.rate) for _ in range(shape.requests)]
    crowd = _agents(run)
    async with asyncio.TaskGroup() as group:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for wait_s, agent in zip(waits, crowd, strict=True):
            due_s += wait_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            group.create_task(_live(run, agent, shape.think_s))
    _by_turn(run)


async def tenants(run: Run) -> None:
    """Agents, chats and single questions of as many tenants as there are keys, each with texts of its own."""
    shape, num_keys = run.shape, run.target.num_keys
    if num_keys == 1:
        run.notes.append("tenants: there is one key, so all requests are one tenant's (set RADIXSERVE_BENCH_KEYS)")
    output = Output(shape.output_tokens)
    systems = [run.text(shape.shared_tokens) for _ in range(num_keys)]
    jobs: list[Callable[[], Awaitable[object]]] = []
    for number in range(shape.requests):
        key, kind = number % num_keys, number // num_keys % 3
        system = systems[key]
        if kind == 0:
            agent = _Agent(system, [run.text(shape.prompt_tokens) for _ in range(shape.turns)])
            jobs.append(partial(_live, run, agent, 0.0, key))
            continue
        said = [("user", run.text(shape.prompt_tokens))]
        said = [("system", system), *said] if kind == 1 else said
        label = "chat" if kind == 1 else "question"
        jobs.append(partial(run.ask, said, output, label, key))
    await run.all(jobs, shape.concurrency)
    run.extras["by_tenant"] = [_share(run, key) for key in range(num_keys)]


def _share(run: Run, key: int) -> dict[str, float | int | None]:
    mine = [one for one in run.outcomes if one.key == key]
    good = [one for one in mine if not one.error]
    ttft = [one.ttft_s for one in good if one.ttft_s is not None]
    return {
        "key": key,
        "requests": len(mine),
        "errors": len(mine) - len(good),
        "output_tokens": sum(one.output_tokens for one in good),
        "ttft_s_median": statistics.median(ttft) if ttft else None,
        "ttft_s_max": max(ttft, default=None),
    }
