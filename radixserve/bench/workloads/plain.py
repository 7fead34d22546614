"""Requests that share nothing but the template: one after the other, or so many at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from radixserve.bench.ask import Output

if TYPE_CHECKING:
    from radixserve.bench.run import Run


async def batch(run: Run) -> None:
    """Prompts of one length, `concurrency` at a time."""
    shape = run.shape
    output = Output(shape.output_tokens)
    prompts = [run.prompt(shape.prompt_tokens) for _ in range(shape.requests)]
    await run.all([partial(run.ask, prompt, output) for prompt in prompts], shape.concurrency)


async def shared_prefix(run: Run) -> None:
    """Chats over one system prompt."""
    shape = run.shape
    output = Output(shape.output_tokens)
    system = run.text(shape.shared_tokens)
    turns = [run.text(shape.prompt_tokens) for _ in range(shape.requests)]
    await run.all([partial(run.ask, [("system", system), ("user", turn)], output) for turn in turns], shape.concurrency)


async def fork_requests(run: Run) -> None:
    """One prompt, its continuations as requests of their own."""
    shape = run.shape
    output = Output(shape.output_tokens)
    for _ in range(shape.requests):
        prompt = run.prompt(shape.prompt_tokens)
        await run.all([partial(run.ask, prompt, output)] * shape.branches, shape.branches)


async def fork_choices(run: Run) -> None:
    """One prompt, its continuations as choices of one request."""
    shape = run.shape
    output = Output(shape.output_tokens, n=shape.branches, temperature=1.0, seed=7)
    for _ in range(shape.requests):
        await run.ask(run.prompt(shape.prompt_tokens), output)
