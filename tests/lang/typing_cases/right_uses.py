"""Uses that both type checkers accept, with the types that they must infer."""

from __future__ import annotations

from collections import Counter
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


@rs.tool
def search(query: str, top_k: int = 3) -> list[str]:
    return [query] * top_k


@rs.tool
def finish(answer: str) -> str:
    return answer


@rs.tool(name="get", description="Fetch a page.")
async def fetch(url: str) -> bytes:
    return url.encode()


def plain(x: int) -> int:
    return x


async def plain_async(x: int) -> float:
    return x


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
def react(s: rs.State, question: str) -> str:
    s += (SYS, rs.user(question))
    for _ in range(8):
        call = s.gen(tools=(search, finish)).value
        assert_type(call, rs.Call[list[str] | str])
        result = s.call(call, lease_s=20.0)
        assert_type(result, list[str] | str)
        if isinstance(result, str):
            return result
    raise TimeoutError


@rs.function
def self_consistency(s: rs.State, question: str, n: int = 9) -> int:
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


@rs.function
def calls(s: rs.State) -> None:
    assert_type(search("q", top_k=1), list[str])
    assert_type(s.gen(tools=(search,)), rs.Var[rs.Call[list[str]]])
    assert_type(s.gen(tools=[search, search]), rs.Var[rs.Call[list[str]]])
    assert_type(s.gen(tools=(plain, search)).value, rs.Call[int | list[str]])
    assert_type(s.gen(tools=[plain]).value, rs.Call[int])
    assert_type(s.gen(tools=(search, finish, fetch)).value, rs.Call[list[str] | str | bytes])
    assert_type(s.gen(tools=(search, finish), tool_choice="auto", temperature=0.3).value, rs.Call[list[str] | str] | str)
    assert_type(s.gen(tools=(search, finish), parallel=True).value, list[rs.Call[list[str] | str]])
    assert_type(s.gen(tools=(search,), tool_choice="auto", parallel=True).value, list[rs.Call[list[str]]] | str)
    call = s.gen(tools=(search, finish), tool_choice="required", retries=2, max_tokens=9).value
    assert_type(s.call(call, on_error="append"), list[str] | str | rs.ToolFailure)
    assert_type(call.arguments, dict[str, Any])
    with s.lease(3.0) as lease:
        assert_type(lease.is_lost, bool)


@rs.function
async def async_calls(s: rs.State) -> None:
    assert_type(await fetch("u"), bytes)
    assert_type(await s.acall(await s.gen(tools=(search, fetch))), list[str] | bytes)
    assert_type(await s.acall(await s.gen(tools=(plain_async,))), float)
    assert_type(await s.acall(await s.gen(tools=(fetch,)), on_error="append"), bytes | rs.ToolFailure)


@rs.function
def several(s: rs.State) -> None:
    assert_type(s.gen(n=3), tuple[rs.Var[str], ...])
    assert_type(s.gen(n=3, json=Answer)[0].value, Answer)
    assert_type(s.gen(n=2, json=Literal["a", "b"])[0].value, Literal["a", "b"])
    assert_type(s.gen(n=2, regex="a")[0].branch, rs.State)
    assert_type(s.gen(json=Answer, retries=2, validate=lambda a: a.answer > 3).value, Answer)
    assert_type(s.gen(retries=1, validate=lambda text: len(text) > 3), rs.Var[str])
    s += rs.message("developer", "Be brief.", name="boss")


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
    assert_type(vote.run("q", budget=rs.Budget(tokens=100)).value, int)
    assert_type(vote.using(budget=rs.Budget(seconds=2.0, tool_calls=3)).run("q").value, int)
    assert_type(asynchronous.run("q").value, str)
    assert_type(vote.run_batch(["a", ("b", 3)], engine=engine), list[rs.Run[int]])
    for piece in vote.stream("q", engine=engine):
        assert_type(piece, str)


async def awaits(s: rs.State, engine: rs.RemoteEngine) -> None:
    assert_type((await vote.arun("q", engine=engine)).value, int)
    assert_type((await asynchronous.arun("q")).value, str)
    assert_type(await asynchronous(s, "q"), str)
