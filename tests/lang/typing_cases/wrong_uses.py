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


@rs.function  # wrong
def no_state(question: str) -> int:
    return 3
