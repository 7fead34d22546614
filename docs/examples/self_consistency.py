"""Self-consistency: several branches reason about one question, the majority wins, and who has lost is cancelled."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import BaseModel, Field

import radixserve as rs

SYSTEM = rs.system("You are a careful assistant. You solve problems of arithmetic in a few short steps.")
SHOTS = (
    rs.user("Tom has 4 apples and eats 1. How many apples are left?"),
    rs.assistant('{"steps": ["He begins with 4.", "4 - 1 = 3"], "answer": 3}'),
    rs.user("A table has 4 legs. How many legs have 2 tables?"),
    rs.assistant('{"steps": ["One table has 4 legs.", "2 * 4 = 8"], "answer": 8}'),
)
QUESTION = "Tom buys 2 books for 4 dollars each. How many dollars does he pay?"


class Answer(BaseModel):
    """First the steps, so that the number follows from them."""

    steps: list[Annotated[str, Field(max_length=40)]] = Field(min_length=1, max_length=2)
    answer: int = Field(ge=0, le=99)


@rs.function
def vote(s: rs.State, question: str, n: int = 9) -> Counter[int]:
    """The votes for each answer, up to the one that made a majority."""
    s += (SYSTEM, *SHOTS, rs.user(question))
    tally: Counter[int] = Counter()
    with s.fork(n) as branches:  # the question is computed once
        for v in rs.as_completed([b.gen(json=Answer, temperature=0.8) for b in branches]):
            tally[v.value.answer] += 1
            if tally.most_common(1)[0][1] > n // 2:
                break  # leaving the block cancels the rest
    return tally


def main(engine: rs.EngineLike) -> rs.Run[Counter[int]]:
    """Run it and show the votes."""
    run = vote.run(QUESTION, engine=engine, seed=8)
    print(f"question   {QUESTION}")
    print(f"votes      {', '.join(f'{answer}: {count}' for answer, count in run.value.most_common())}")
    (fork,) = (step for step in run.trace.root.steps if step.kind == "fork")
    unneeded = sum(branch.steps[-1].status == "cancelled" for branch in fork.branches)
    print(f"cancelled  {unneeded} of {len(fork.branches)} branches were no longer needed")
    print(f"answer     {run.value.most_common(1)[0][0]}")
    print(f"saved      {run.usage.cached_tokens} of {run.usage.prompt_tokens} prompt tokens came from the cache")
    return run


if __name__ == "__main__":
    with rs.Engine("smollm2-135m") as local:
        main(local)
