"""Budgets: how they reach the server, and what a program hears when one is used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import radixserve_lang as rs
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.protocol import Failed, Gen, Open
from tests.lang.fake_server import Engine, called

if TYPE_CHECKING:
    from tests.lang.fake_server import FakeServer


def exhausted(gen: Gen) -> Failed:
    return Failed(
        program=gen.program,
        op=gen.op,
        var=gen.var,
        code="budget_exhausted",
        message="the program may draw 5 tokens and has drawn 5",
        status=429,
        partial="some te",
    )


def finish(answer: str) -> str:
    return answer


def test_a_budget_reaches_the_open(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def one(s: rs.State, text: str = "") -> str:
        return s.gen().value

    @rs.function
    async def other(s: rs.State) -> str:
        return await s.gen()

    budget = rs.Budget(tokens=5, seconds=1.5, tool_calls=2)
    one.using(engine=engine, budget=budget).run()
    one.run(engine=engine, budget=rs.Budget(tokens=7))
    one.run(engine=engine)
    list(one.stream(engine=engine, budget=rs.Budget(tokens=8)))
    one.run_batch(["a"], engine=engine, budget=rs.Budget(tokens=9), progress=False)
    other.run(engine=engine, budget=rs.Budget(tokens=10))
    budgets = [message.budget for message in server.wait_for(Open, 6)]
    assert budgets[0] == wire.Budget(tokens=5, seconds=1.5, tool_calls=2)
    assert budgets[2] is None
    assert [one.tokens for one in budgets if one is not None] == [5, 7, 8, 9, 10]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"tokens": -1}, r"Budget\(tokens=-1\): a whole number of 0 or more"),
        ({"tokens": 1.5}, r"Budget\(tokens=1\.5\)"),
        ({"tool_calls": True}, r"Budget\(tool_calls=True\)"),
        ({"seconds": 0}, r"Budget\(seconds=0\): above 0"),
        ({"seconds": float("inf")}, r"Budget\(seconds=inf\)"),
    ],
)
def test_what_is_no_budget(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rs.Budget(**limits)


def test_the_error_says_what_was_allowed_and_used(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def greedy(s: rs.State) -> str:
        s.call(s.gen(tools=(finish,)).value)
        s.gen().settle()
        return s.gen().value

    def answer(gen: Gen) -> Any:
        if gen.tool_use is not None:
            return called(gen, ("finish", '{"answer": "a"}'))
        return "ok" if gen.var == 1 else exhausted(gen)

    server.answer = answer
    with pytest.raises(rs.BudgetExceededError) as caught:
        greedy.run(engine=engine, budget=rs.Budget(tokens=5, tool_calls=3))
    error = caught.value
    assert error.budget == rs.Budget(tokens=5, tool_calls=3)
    assert error.used is not None
    assert (error.used.tokens, error.used.tool_calls) == (1, 1)
    assert error.partial == "some te"
    message = str(error)
    assert message.startswith("gen at ")
    assert "in greedy failed (budget_exhausted): the program may draw 5 tokens and has drawn 5" in message
    assert "Give the program more with budget=rs.Budget(...)" in message
    assert "allowed: 5 tokens, 3 tool calls; used by ops that are done: 1 tokens, " in message


def test_what_comes_after_a_budget_that_was_noticed_is_no_surprise(engine: Engine, server: FakeServer) -> None:
    @rs.function
    def careful(s: rs.State) -> str:
        first, second = s.fork(2)
        a, b = first.gen(), second.gen()
        b.settle()
        try:
            return a.value
        except rs.BudgetExceededError as error:
            return f"stopped with {error.partial}"

    @rs.function
    def careless(s: rs.State) -> str:
        s.gen().settle()
        return "done"

    server.answer = exhausted
    assert careful.run(engine=engine).value == "stopped with some te"
    with pytest.raises(rs.BudgetExceededError):
        careless.run(engine=engine)
