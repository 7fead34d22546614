"""A recorded trace, replayed: prompts are made of text blocks that are equal where the recorded ids are.

Lengths are multiplied by `scale_length`; a block is a whole number of tokens. A session ends before its first request that does
not fit the model's context. Sessions with arrival times come by the clock, others follow each other, `concurrency` at a time.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from radixserve.bench.ask import BenchError, Output
from radixserve.bench.traces import Session, read_trace
from radixserve.bench.words import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from radixserve.bench.run import Run
    from radixserve.bench.traces import Request, Trace

#: Tokens around the text: template, system prompt and first word; generously.
_AROUND = 64


class Replay:
    """A trace at the size of a run."""

    def __init__(self, run: Run, trace: Trace) -> None:
        shape = run.shape
        self._run = run
        self._blocks_are_global = trace.blocks_are_global
        self.block_tokens = max(1, round(trace.block_tokens * shape.scale_length))
        self.scale = self.block_tokens / trace.block_tokens
        self._scale_output = shape.scale_output or self.scale
        self._trace_block = trace.block_tokens
        self._texts: dict[tuple[int, int], str] = {}

    def prompt_tokens(self, request: Request) -> int:
        """Tokens of the text, without what the template adds."""
        return len(request.blocks) * self.block_tokens + self._tail(request)

    def output_tokens(self, request: Request) -> int:
        """At least one."""
        return max(1, round(request.output_tokens * self._scale_output))

    def text(self, request: Request, session: int, number: int) -> str:
        """The prompt: blocks, then what the trace has no id for, which no other request has."""
        owner = -1 if self._blocks_are_global else session
        blocks = "".join(self._block(owner, block) for block in request.blocks)
        tail = self._tail(request)
        return FIRST + blocks + self._run.speller.more(tail, random.Random(f"{self._run.seed} tail {session} {number}"))

    def fitting(self, session: Session) -> Session:
        """Up to the first request that is too long; what follows it in its chain and in later stages is left out."""
        limit = self._run.target.max_context or 1 << 30
        stages: list[tuple[tuple[Request, ...], ...]] = []
        for stage in session.stages:
            kept = [tuple(self._within(chain, limit)) for chain in stage]
            if any(kept):
                stages.append(tuple(chain for chain in kept if chain))
            if any(len(short) < len(chain) for short, chain in zip(kept, stage, strict=True)):
                break
        return Session(tuple(stages), session.start_s)

    def _within(self, chain: Iterable[Request], limit: int) -> Iterator[Request]:
        for request in chain:
            if self.prompt_tokens(request) + self.output_tokens(request) + _AROUND > limit:
                return
            yield request

    def _tail(self, request: Request) -> int:
        return max(0, round((request.prompt_tokens - len(request.blocks) * self._trace_block) * self.scale))

    def _block(self, owner: int, block: int) -> str:
        text = self._texts.get((owner, block))
        if text is None:
            text = self._run.speller.more(self.block_tokens, random.Random(f"{self._run.seed} block {owner} {block}"))
            self._texts[owner, block] = text
        return text


async def replay(run: Run) -> None:
    """The first `requests` sessions that have anything that fits."""
    if run.shape.trace is None:
        raise BenchError("the workload trace needs --trace FILE")
    trace = read_trace(run.shape.trace)
    replayed = Replay(run, trace)
    fitting = (replayed.fitting(session) for session in trace.sessions)
    sessions = [session for session, _ in zip((one for one in fitting if one.stages), range(run.shape.requests), strict=False)]
    if not sessions:
        raise BenchError(
            f"no request of {run.shape.trace} fits {run.target.max_context} tokens; lower --scale-length ({run.shape.scale_length:g})"
        )
    if run.target.num_keys > 1:
        run.notes.append(f"trace: no trace names tenants; session i was sent with key i modulo {run.target.num_keys}")
    run.extras |= {"sessions": len(sessions), "scale": replayed.scale, "block_tokens": replayed.block_tokens}
    jobs = [partial(_live, run, replayed, session, number) for number, session in enumerate(sessions)]
    if sessions[0].start_s is None:
        await run.all(jobs, run.shape.concurrency)
        return
    run.notes.append("trace: requests came by the recorded times (--scale-time); --concurrency has no meaning for this file")
    origin_s = sessions[0].start_s
    async with asyncio.TaskGroup() as group:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for session, job in zip(sessions, jobs, strict=True):
            due_s = began_s + ((session.start_s or 0.0) - origin_s) * run.shape.scale_time
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            group.create_task(job())


async def _live(run: Run, replayed: Replay, session: Session, number: int) -> None:
    key = number % run.target.num_keys
    sent = 0
    for stage in session.stages:
        async with asyncio.TaskGroup() as group:
            for chain in stage:
                group.create_task(_follow(run, replayed, chain, number, sent, key))
                sent += len(chain)


async def _follow(run: Run, replayed: Replay, chain: tuple[Request, ...], session: int, first: int, key: int) -> None:
    for index, request in enumerate(chain):
        if first + index and request.pause_s:
            await asyncio.sleep(min(request.pause_s, run.shape.max_think_s) * run.shape.scale_time)
        said = [("user", replayed.text(request, session, first + index))]
        await run.ask(said, Output(replayed.output_tokens(request)), "trace", key)
