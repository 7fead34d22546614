"""Programs of the guide on the real model: a tool loop and a vote, on an engine started here."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel, Field

import radixserve as rs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.model, pytest.mark.slow]

SYS = rs.system("You are a careful assistant.")
CAPITALS = {"france": "Paris", "japan": "Tokyo"}


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[rs.Engine]:
    with rs.Engine(str(smollm2_path), dtype="float32", kv_tokens=8192, threads=1, log_level="warning") as running:
        yield running


class Answer(BaseModel):
    steps: list[str] = Field(max_length=2)
    answer: int


@rs.tool
def search(query: str, top_k: int = 3) -> list[str]:
    """Search an encyclopedia.

    Args:
        query: What to look for.
        top_k: How many results.
    """
    found = [f"The capital of {country} is {city}." for country, city in CAPITALS.items() if country in query.lower()]
    return (found or ["Nothing was found."])[:top_k]


@rs.tool
def finish(answer: str) -> str:
    """Give the final answer.

    Args:
        answer: The answer to the question.
    """
    return answer


@rs.function
def react(s: rs.State, question: str, calls: list[str]) -> str:
    s += (SYS, rs.user(question))
    for turn in range(4):
        # In the end it has to finish: a small model may search for ever.
        call = s.gen(tools=(search, finish), max_tokens=200, temperature=0.0).value
        calls.append(call.name)
        result = s.call(call, lease_s=20.0)
        if isinstance(result, str):
            return result
        if turn == 2:
            call = s.gen(tools=(finish,), max_tokens=200, temperature=0.0).value
            calls.append(call.name)
            return s.call(call)
    raise TimeoutError


@rs.function
def vote(s: rs.State, question: str, n: int = 5) -> int:
    s += (SYS, rs.user(question))
    tally: Counter[int] = Counter()
    with s.fork(n) as branches:
        for v in rs.as_completed([b.gen(json=Answer, temperature=0.8, max_tokens=200, retries=2) for b in branches]):
            tally[v.value.answer] += 1
            if tally.most_common(1)[0][1] > n // 2:
                break
    return tally.most_common(1)[0][0]


def test_a_tool_loop(engine: rs.Engine) -> None:
    question = "What is the capital of France? Search first, then finish."
    calls: list[str] = []
    run = react.run(question, calls, engine=engine, seed=1)
    assert calls[-1] == "finish"
    assert run.value
    steps = run.trace.root.steps
    gens = [step for step in steps if step.kind == "gen"]
    assert len(gens) == len(calls) == run.usage.tool_calls
    # After a call only what came since the last prompt is computed: its own text, the result and the turn's marks.
    for before, after in itertools.pairwise(gens):
        assert before.usage is not None
        assert after.usage is not None
        assert after.usage.cached_tokens >= before.usage.prompt_tokens
    assert len([step for step in steps if step.kind == "tools"]) <= 1
    again: list[str] = []
    assert react.run(question, again, engine=engine, seed=1).value == run.value
    assert again == calls


def test_a_vote(engine: rs.Engine) -> None:
    question = "Anna has 3 apples and buys 4 more. How many apples has she? Think in at most two steps."
    run = vote.run(question, engine=engine, seed=2)
    assert isinstance(run.value, int)
    (fork,) = [step for step in run.trace.root.steps if step.kind == "fork"]
    assert len(fork.branches) == 5
    answered = [step for branch in fork.branches for step in branch.steps if step.status == "done"]
    assert answered
    shared = [step.usage.cached_tokens for step in answered if step.usage is not None]
    assert max(shared) > 0  # the question is computed once for all branches
