"""Uses that both type checkers must refuse: each line marked `# wrong` is an error, and no other line is."""

from __future__ import annotations

from pydantic import BaseModel

import radixserve_lang as rs


class Answer(BaseModel):
    answer: int


def whole(number: int) -> int:
    return number


def words(text: str) -> str:
    return text


@rs.tool
def search(query: str, top_k: int = 3) -> list[str]:
    return [query] * top_k


@rs.tool
def finish(answer: str) -> str:
    return answer


@rs.tool
async def fetch(url: str) -> bytes:
    return url.encode()


def grade(answer: Answer) -> bool:
    return answer.answer > 3


@rs.function
def react(s: rs.State, question: str) -> str:
    call = s.gen(tools=(search, finish)).value
    words(s.call(call))  # wrong
    words(call)  # wrong
    words(s.call(s.gen(tools=(search,)).value))  # wrong
    words(s.call(s.gen(tools=(finish,)).value, on_error="append"))  # wrong
    s.call(call, on_error="ignore")  # wrong
    s.call(call, lease=3)  # wrong
    s.call(s.gen(tools=(search,), tool_choice="auto").value)  # wrong
    s.call(s.gen(tools=(search,), parallel=True).value)  # wrong
    s.call(s.gen(tools=(search,)))  # wrong
    s.gen(tools=search)  # wrong
    s.gen(tools=(search, 3))  # wrong
    s.gen(tools=(search,), tool_choice="never")  # wrong
    s.gen(tools=(search,), json=Answer)  # wrong
    s.gen(tool_choice="auto")  # wrong
    s.gen(json=int, validate=grade)  # wrong
    s.gen(retries="two")  # wrong
    words(s.gen(n=2).value)  # wrong
    words(s.gen(n=2, json=int)[0].value)  # wrong
    search(3)  # wrong
    words(search("q"))  # wrong
    return call.name


@rs.function
async def acalls(s: rs.State) -> str:
    words(await s.acall(await s.gen(tools=(fetch,))))  # wrong
    words(s.acall(await s.gen(tools=(fetch,))))  # wrong
    return ""


rs.Budget(token=3)  # wrong
rs.Budget(tokens="many")  # wrong


@rs.function
def vote(s: rs.State, question: str, n: int = 9) -> int:
    whole(s.gen().value)  # wrong
    words(s.gen(json=Answer).value)  # wrong
    words(s.gen(json=int).value)  # wrong
    words(s.gen())  # wrong
    s.gen(temprature=0.5)  # wrong
    s.gen(temperature="hot")  # wrong
    s.gen(regex="a", json=int)  # wrong
    s.select(3)  # wrong
    words(s.score(["a"]).value)  # wrong
    rs.user(3)  # wrong
    s += 3  # wrong
    len(s.gen())  # wrong
    return s.select(["a"]).value  # wrong


@rs.function
async def ask(s: rs.State) -> str:
    return s.gen()  # wrong


x: str = vote.run("q").value  # wrong
vote.run(3)  # wrong
vote.run("q", m=3)  # wrong
vote.run()  # wrong
vote.using(seed=1).run("q", "three")  # wrong
vote.using(sead=1)  # wrong
y: int = ask.run().value  # wrong
vote("q")  # wrong
vote.using(budget=3)  # wrong
vote.run("q", budget=3)  # wrong


@rs.function  # wrong
def no_state(question: str) -> int:
    return 3
