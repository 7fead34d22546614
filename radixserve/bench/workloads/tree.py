"""Tree of thought: a question forks into thoughts, each is judged by a few tokens, one goes on to the next level."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from radixserve.bench.ask import Output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from radixserve.bench.ask import Conversation
    from radixserve.bench.run import Run

_JUDGE = Output(4)


async def tree(run: Run) -> None:
    """`requests` trees, `concurrency` at a time. Which thought goes on is drawn beforehand, so that all servers grow the same tree."""
    shape = run.shape
    jobs: list[Callable[[], Awaitable[object]]] = []
    for _ in range(shape.requests):
        question = run.prompt(shape.prompt_tokens)
        asks = [(run.text(16), run.text(16), run.source.randrange(shape.branches)) for _ in range(shape.depth)]
        jobs.append(partial(_grow, run, question, asks))
    await run.all(jobs, shape.concurrency)


async def _grow(run: Run, question: list[tuple[str, str]], asks: list[tuple[str, str, int]]) -> None:
    root: Conversation = run.target.converse()
    said = question
    for level, (think, judge, chosen) in enumerate(asks):
        # The first thoughts answer the question itself; later ones are asked for after the thought that went on.
        first = said if level == 0 else [("user", think)]
        children = await root.fork(run.shape.branches)
        async with asyncio.TaskGroup() as group:
            for index, child in enumerate(children):
                group.create_task(_think(run, child, first, judge, index))
        await root.close()
        for index, child in enumerate(children):
            if index != chosen:
                await child.close()
        root = children[chosen]
    await root.close()


async def _think(run: Run, child: Conversation, said: list[tuple[str, str]], judge: str, index: int) -> None:
    # Thoughts of a node differ, as samples would; by their seeds, so that a run can be repeated.
    thought = await run.say(child, said, Output(run.shape.output_tokens, temperature=1.0, seed=index), "thought")
    if thought.error:
        run.lose(_JUDGE, "not sent: its thought failed", "verdict")
    else:
        await run.say(child, [("user", judge)], _JUDGE, "verdict")
