"""The five programs that the DSL was designed by, as they were written then: chat, vote, tree of thought, tool loop, map-reduce."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel

import radixserve as rs
from radixserve import testing

SYS = rs.system("You are a careful assistant.")


@rs.function
def chat(s: rs.State, turns: list[str]) -> list[str]:
    s += SYS
    answers: list[str] = []
    for turn in turns:
        s += rs.user(turn)
        answers.append(s.gen(max_tokens=256).value)
    return answers


class Answer(BaseModel):
    steps: list[str]
    answer: int


@rs.function
def vote(s: rs.State, question: str, n: int = 9) -> int:
    s += (SYS, rs.user(question))
    tally: Counter[int] = Counter()
    with s.fork(n) as branches:
        for v in rs.as_completed([b.gen(json=Answer, temperature=0.8) for b in branches]):
            tally[v.value.answer] += 1
            if tally.most_common(1)[0][1] > n // 2:
                break
    return tally.most_common(1)[0][0]


@rs.function
def tree_of_thought(s: rs.State, question: str, depth: int = 3, width: int = 4, keep: int = 2) -> str:
    s += (SYS, rs.user(question))
    beam = [s]
    for _ in range(depth):
        kids = [k for b in beam for k in b.fork(width)]
        for k in kids:
            k.gen(max_tokens=64, stop="\n")
        marks = [k.score([" good", " bad"]) for k in kids]
        beam = [k for k, _ in sorted(zip(kids, marks, strict=True), key=lambda km: -km[1].value[" good"])[:keep]]
    return beam[0].gen(regex=r"Answer: .+").value


@rs.tool
def search(query: str, top_k: int = 3) -> list[str]:
    return [f"{query} {place}" for place in range(top_k)]


@rs.tool
def finish(answer: str) -> str:
    return answer


@rs.function
def react(s: rs.State, question: str) -> str:
    s += (SYS, rs.user(question))
    for _ in range(8):
        call = s.gen(tools=(search, finish)).value
        result = s.call(call, lease_s=20.0)
        if isinstance(result, str):
            return result
    raise TimeoutError


@rs.function
def summarise(s: rs.State, chunks: list[str]) -> str:
    s += SYS
    with s.fork(len(chunks)) as branches:
        parts: list[rs.Var[str]] = []
        for b, chunk in zip(branches, chunks, strict=True):
            b += rs.user("Summarise:\n", chunk)
            parts.append(b.gen(max_tokens=120))
        s += rs.user("Merge:\n", *parts)
        return s.gen(max_tokens=300).value


def test_chat() -> None:
    with testing.Scripted(["Hello.", "Well."]) as engine:
        assert chat.run(["Hi", "How are you?"], engine=engine).value == ["Hello.", "Well."]


def test_a_vote_whose_losers_are_cancelled() -> None:
    script: list[Any] = [*([Answer(steps=["3 + 4"], answer=7)] * 5), *([testing.RUNNING] * 4)]
    with testing.Scripted(script) as engine:
        run = vote.run("3 + 4?", engine=engine)
    assert run.value == 7
    (fork,) = (step for step in run.trace.root.steps if step.kind == "fork")
    assert [branch.steps[-1].status for branch in fork.branches].count("cancelled") == 4


def test_a_tree_of_thought_goes_on_from_the_best() -> None:
    def answered(text: str) -> Any:
        """The thoughts on the branch, one figure each."""
        return "Answer: " + text[-3:]

    def level(first: int, width: int) -> list[Any]:
        thoughts = [str(first + place) for place in range(width)]
        return [*thoughts, *({" good": float(thought), " bad": 0.0} for thought in thoughts)]

    script = [*level(1, 4), *level(1, 8), *level(1, 8), answered]
    with testing.Scripted(script) as engine:
        run = tree_of_thought.run("Why?", engine=engine)
    # The best is first in the beam, so the highest figures of the next level are the children of the second best.
    assert run.value == "Answer: 378"
    forks = [step for step in run.trace.root.steps if step.kind == "fork"]
    assert [[step.kind for step in branch.steps].count("fork") for branch in forks[0].branches] == [0, 0, 1, 1]


def test_a_tool_loop() -> None:
    script = [testing.call(search, query="fjord", top_k=1), testing.call(finish, answer="An inlet.")]
    with testing.Scripted(script) as engine:
        run = react.run("What is a fjord?", engine=engine)
    assert run.value == "An inlet."
    assert [step.text for step in run.trace.root.steps if step.kind == "tool"] == ['["fjord 0"]', "An inlet."]
    with testing.Scripted(then=lambda text: testing.call(search, query="fjord")) as engine, pytest.raises(TimeoutError):
        react.run("What is a fjord?", engine=engine)


def test_a_map_reduce_waits_once() -> None:
    with testing.Scripted(["Snow.", "A thaw.", "Snow came and went."]) as engine:
        run = summarise.run(["It snowed.", "It melted."], engine=engine)
    assert run.value == "Snow came and went."
    assert run.trace.root.steps[2].text == "Merge:\nSnow.A thaw."
