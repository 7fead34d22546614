"""The programs in the DSL."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import radixserve as rs
from benchmarks.written_twice.work import (
    ASK_AGAIN,
    CONCLUDE,
    EXPLAIN,
    MARK,
    NEXT,
    SYSTEM,
    Verdict,
    Work,
    best,
    choice_seed,
    make_search,
    winner,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

_SYSTEM = rs.system(SYSTEM)
#: Longer than any pause; the next generation ends a lease.
_LEASE_S = 120.0


@rs.function
async def tree_of_thought(s: rs.State, work: Work) -> str:
    """Thoughts, marked by the model; the best go on."""
    sizes = work.sizes
    s += (_SYSTEM, rs.user(work.question))
    beam = [s]
    for level in range(sizes.depth):
        kids: list[rs.State] = []
        marks: list[rs.Var[str]] = []
        for place, branch in enumerate(beam):
            for choice, kid in enumerate(branch.fork(sizes.width)):
                seed = choice_seed(work.seed(f"{level} {place}"), choice)
                kid.gen(max_tokens=sizes.output, temperature=0.9, stop="\n", seed=seed)
                kid += rs.user(MARK)
                marks.append(kid.gen(regex="[1-9]", temperature=0.0))
                kids.append(kid)
        chosen = best([int(await mark) for mark in marks], sizes.keep)
        for place, kid in enumerate(kids):
            if place not in chosen:
                kid.cancel()
        beam = [kids[place] for place in chosen]
        if sizes.pause_s:
            with ExitStack() as leases:  # what is forked next doesn't end them
                for kid in beam:
                    leases.enter_context(kid.lease(_LEASE_S))
                await work.pause()
        for kid in beam:
            kid += rs.user(NEXT if level + 1 < sizes.depth else CONCLUDE)
    return await beam[0].gen(max_tokens=sizes.output, temperature=0.0)


@rs.function
async def self_consistency(s: rs.State, work: Work) -> str:
    """For each question votes until one answer has the majority, a check, and an explanation."""
    sizes = work.sizes
    s += (_SYSTEM, rs.user(work.question))
    said: list[str] = []
    for number in range(sizes.questions):
        if number:
            s += rs.user(ASK_AGAIN)
        answer = await _vote(s, work, number)
        s += rs.assistant(str(answer))
        if sizes.pause_s:
            s.lease(_LEASE_S)
            await work.pause()
        s += rs.user(EXPLAIN)
        said.append(f"{answer} {await s.gen(max_tokens=sizes.output, temperature=0.0)}")
    return " | ".join(said)


async def _vote(s: rs.State, work: Work, number: int) -> int:
    """What most say; those who are still at it are cancelled then."""
    answers: list[int] = []
    seed = work.seed(f"votes {number}")
    with s.fork(work.sizes.votes) as branches:
        asked = [b.gen(json=Verdict, temperature=0.9, seed=choice_seed(seed, i)) for i, b in enumerate(branches)]
        async for verdict in rs.as_completed(asked):
            answers.append((await verdict).answer)
            if answers.count(winner(answers)) > work.sizes.votes // 2:
                break
    return winner(answers)


@rs.function
async def react(s: rs.State, work: Work) -> str:
    """Searches, then an answer."""
    queries: list[str] = []
    search = make_search(work, queries)
    s += (_SYSTEM, rs.user(work.question))
    for _ in range(work.sizes.turns):
        call = await s.gen(tools=(search,), temperature=0.0)
        await s.acall(call, lease_s=_LEASE_S if work.sizes.pause_s else None)
    s += rs.user(CONCLUDE)
    return " | ".join([*queries, await s.gen(max_tokens=work.sizes.output, temperature=0.0)])


def run(program: str, work: Work, engine: rs.EngineLike) -> Coroutine[None, None, rs.Run[str]]:
    """One run of the program of that name."""
    written = {"tree of thought": tree_of_thought, "self-consistency": self_consistency, "react": react}[program]
    return written.using(engine=engine).arun(work)
