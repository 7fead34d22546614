"""Uses that both type checkers accept, with the types that they must infer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, assert_type

from pydantic import BaseModel, TypeAdapter

import radixserve_lang as rs


class Answer(BaseModel):
    answer: int


@dataclass
class Point:
    x: int


class Row(TypedDict):
    name: str


SYS = rs.system("Be brief.")


@rs.function
def vote(s: rs.State, question: str, n: int = 9) -> int:
    s += (SYS, rs.user(question))
    s += "raw"
    with s.fork(n) as branches:
        for v in rs.as_completed([b.gen(json=Answer, temperature=0.8) for b in branches]):
            assert_type(v, rs.Var[Answer])
            return v.value.answer
    return 0


@rs.function
def kinds(s: rs.State) -> None:
    assert_type(s.gen(max_tokens=3, stop=["a"]), rs.Var[str])
    assert_type(s.gen(regex="a"), rs.Var[str])
    assert_type(s.gen(grammar='root ::= "a"'), rs.Var[str])
    assert_type(s.gen(json=Answer).value, Answer)
    assert_type(s.gen(json=Point).value, Point)
    assert_type(s.gen(json=Row).value, Row)
    assert_type(s.gen(json=int).value, int)
    assert_type(s.gen(json=bool).value, bool)
    assert_type(s.gen(json=list[Answer]).value, list[Answer])
    assert_type(s.gen(json=Answer | Point).value, Answer | Point)
    assert_type(s.gen(json=Literal["yes", "no"]).value, Literal["yes", "no"])
    assert_type(s.gen(json=TypeAdapter(list[int])).value, list[int])
    assert_type(s.gen(json={"type": "object"}), rs.Var[Any])
    assert_type(s.select(["a", "b"]), rs.Var[str])
    assert_type(s.score(["a", "b"]).value, dict[str, float])
    v = s.gen()
    s += rs.user("Merge:", v)
    s += [rs.user("a"), v, "tail"]
    for piece in v:
        assert_type(piece, str)


@rs.function
async def asynchronous(s: rs.State, question: str) -> str:
    s += rs.user(question)
    v = s.gen()
    async for piece in v:
        assert_type(piece, str)
    async for done in rs.as_completed([v]):
        assert_type(await done, str)
    assert_type(vote(s, question), int)
    return await v


def runs(engine: rs.RemoteEngine) -> None:
    assert_type(vote.run("q"), rs.Run[int])
    assert_type(vote.run("q", n=3).value, int)
    assert_type(vote.run("q", engine=engine).value, int)
    assert_type(vote.run("q", seed=3).value, int)
    assert_type(vote.run("q", engine=engine, seed=3).value, int)
    assert_type(vote.using(engine=engine).run("q", n=3).value, int)
    assert_type(asynchronous.run("q").value, str)
    assert_type(vote.run_batch(["a", ("b", 3)], engine=engine), list[rs.Run[int]])
    for piece in vote.stream("q", engine=engine):
        assert_type(piece, str)


async def awaits(s: rs.State, engine: rs.RemoteEngine) -> None:
    assert_type((await vote.arun("q", engine=engine)).value, int)
    assert_type((await asynchronous.arun("q")).value, str)
    assert_type(await asynchronous(s, "q"), str)
