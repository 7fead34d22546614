"""Uses that both type checkers must refuse. A mark names the errors that mypy and pyright must find on its line; no other line has any."""

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
    words(s.call(call))  # wrong: arg-type, reportArgumentType
    words(call)  # wrong: arg-type, reportArgumentType
    words(s.call(s.gen(tools=(search,)).value))  # wrong: arg-type, reportArgumentType
    words(s.call(s.gen(tools=(finish,)).value, on_error="append"))  # wrong: arg-type, reportArgumentType
    s.call(call, on_error="ignore")  # wrong: call-overload, reportArgumentType, reportCallIssue
    s.call(call, lease=3)  # wrong: call-overload, reportCallIssue
    s.call(s.gen(tools=(search,), tool_choice="auto").value)  # wrong: arg-type, reportArgumentType
    s.call(s.gen(tools=(search,), parallel=True).value)  # wrong: call-overload, reportArgumentType
    s.call(s.gen(tools=(search,)))  # wrong: call-overload, reportArgumentType
    s.gen(tools=search)  # wrong: call-overload, reportArgumentType, reportCallIssue
    s.gen(tools=(search, 3))  # wrong: arg-type, reportArgumentType, reportCallIssue
    s.gen(tools=(search,), tool_choice="never")  # wrong: call-overload, reportArgumentType, reportCallIssue
    s.gen(tools=(search,), json=Answer)  # wrong: call-overload, reportCallIssue
    s.gen(tool_choice="auto")  # wrong: call-overload, reportCallIssue
    s.gen(json=int, validate=grade)  # wrong: arg-type, reportArgumentType, reportCallIssue
    s.gen(retries="two")  # wrong: call-overload, reportArgumentType
    words(s.gen(n=2).value)  # wrong: attr-defined, reportAttributeAccessIssue
    words(s.gen(n=2, json=int)[0].value)  # wrong: arg-type, reportArgumentType
    search(3)  # wrong: arg-type, reportArgumentType
    words(search("q"))  # wrong: arg-type, reportArgumentType
    return call.name


@rs.function
async def acalls(s: rs.State) -> str:
    words(await s.acall(await s.gen(tools=(fetch,))))  # wrong: arg-type, reportArgumentType
    words(s.acall(await s.gen(tools=(fetch,))))  # wrong: arg-type, reportArgumentType
    return ""


rs.Budget(token=3)  # wrong: call-arg, reportCallIssue
rs.Budget(tokens="many")  # wrong: arg-type, reportArgumentType


@rs.function
def vote(s: rs.State, question: str, n: int = 9) -> int:
    whole(s.gen().value)  # wrong: arg-type, reportArgumentType
    words(s.gen(json=Answer).value)  # wrong: arg-type, reportArgumentType
    words(s.gen(json=int).value)  # wrong: arg-type, reportArgumentType
    words(s.gen())  # wrong: arg-type, reportArgumentType
    s.gen(temprature=0.5)  # wrong: call-overload, reportCallIssue
    s.gen(temperature="hot")  # wrong: call-overload, reportArgumentType
    s.gen(regex="a", json=int)  # wrong: call-overload, reportCallIssue
    s.select(3)  # wrong: arg-type, reportArgumentType
    words(s.score(["a"]).value)  # wrong: arg-type, reportArgumentType
    rs.user(3)  # wrong: arg-type, reportArgumentType
    s += 3  # wrong: arg-type, reportOperatorIssue
    len(s.gen())  # wrong: arg-type, reportArgumentType
    return s.select(["a"]).value  # wrong: return-value, reportReturnType


@rs.function
async def ask(s: rs.State) -> str:
    return s.gen()  # wrong: return-value, reportReturnType


x: str = vote.run("q").value  # wrong: assignment, reportAssignmentType
vote.run(3)  # wrong: call-overload, reportArgumentType
vote.run("q", m=3)  # wrong: call-overload, reportCallIssue
vote.run()  # wrong: call-overload, reportCallIssue
vote.using(seed=1).run("q", "three")  # wrong: call-overload, reportArgumentType
vote.using(sead=1)  # wrong: call-arg, reportCallIssue
y: int = ask.run().value  # wrong: assignment, reportAssignmentType
vote("q")  # wrong: arg-type, call-arg, reportCallIssue
vote.using(budget=3)  # wrong: arg-type, reportArgumentType
vote.run("q", budget=3)  # wrong: call-overload, reportArgumentType


@rs.function  # wrong: arg-type, reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator
def no_state(question: str) -> int:
    return 3
