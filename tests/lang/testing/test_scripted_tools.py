"""`Scripted` with tools, retries, leases and budgets."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

import radixserve_lang as rs
from radixserve_lang import testing


class Answer(BaseModel):
    answer: int


@rs.tool
def search(query: str, top_k: int = 3) -> list[str]:
    """Search."""
    return [f"{query} {i}" for i in range(top_k)]


@rs.tool
def finish(answer: str) -> str:
    """Finish."""
    return answer


@rs.function
def react(s: rs.State, question: str) -> str:
    s += (rs.system("Use tools."), rs.user(question))
    for _ in range(4):
        call = s.gen(tools=(search, finish)).value
        result = s.call(call, lease_s=5.0)
        if isinstance(result, str):
            return result
    raise TimeoutError


def test_a_tool_loop() -> None:
    seen: list[str] = []

    def last(text: str) -> testing.ToolCalls:
        seen.append(text)
        return testing.call(finish, answer="done")

    with testing.Scripted([testing.call(search, query="x", top_k=1), last]) as engine:
        run = react.run("q", engine=engine)
    assert run.value == "done"
    assert run.usage.tool_calls == 2
    assert seen[0].endswith('tool: ["x 0"]\nassistant: ')


def test_a_tool_loop_is_recorded_and_played_back(tmp_path: object) -> None:
    file = f"{tmp_path}/react.jsonl"
    script = testing.Scripted([testing.call("search", query="x"), testing.call("finish", answer="done")])
    with testing.record(file, script) as engine:
        react.run("q", engine=engine)
    with testing.Replay(file) as engine:
        assert react.run("q", engine=engine).value == "done"
    with pytest.raises(testing.DivergedError, match="part 2"), testing.Replay(file) as engine, pytest.raises(rs.OpError):
        react.run("r", engine=engine)


def test_text_beside_calls_and_several_calls() -> None:
    @rs.function
    def two(s: rs.State) -> tuple[list[str], str]:
        s += rs.user("go")
        made = s.gen(tools=(search,), parallel=True)
        return [call.arguments["query"] for call in made.value], made.text

    both = testing.calls(testing.call("search", query="a"), testing.call("search", query="b"), text="Let me see.")
    with testing.Scripted([both]) as engine:
        assert two.run(engine=engine).value == (["a", "b"], "Let me see.")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("text", "must call a tool"),
        (testing.call("other"), "'other' is none of this gen's tools: search, finish"),
        (testing.calls(testing.call("search", query="a"), testing.call("search", query="b")), "one call at a time"),
    ],
)
def test_calls_that_no_engine_could_make(answer: object, message: str) -> None:
    engine = testing.Scripted([answer])
    with pytest.raises(rs.OpError, match=message):
        react.run("q", engine=engine)
    with pytest.raises(testing.ScriptError, match=message):
        engine.close()


def test_a_refused_value_is_asked_for_again() -> None:
    @rs.function
    def careful(s: rs.State) -> int:
        s += rs.user("go")
        first = s.gen(json=Answer, retries=2, validate=lambda value: value.answer > 10)
        s += rs.user("and?")
        assert s.gen().value == "after"
        return first.value.answer

    texts: list[str] = []

    def after(text: str) -> str:
        texts.append(text)
        return "after"

    with testing.Scripted([{"answer": 1}, {"answer": 2}, {"answer": 11}, after]) as engine:
        assert careful.run(engine=engine).value == 11
    assert texts == ['user: go\nassistant: {"answer":11}\nuser: and?\nassistant: ']


def test_retries_are_recorded_and_played_back(tmp_path: object) -> None:
    @rs.function
    def careful(s: rs.State) -> int:
        s += rs.user("go")
        return s.gen(json=Answer, retries=2, validate=lambda value: value.answer > 10).value.answer

    file = f"{tmp_path}/retries.jsonl"
    with testing.record(file, testing.Scripted([{"answer": 1}, {"answer": 11}])) as engine:
        assert careful.run(engine=engine).value == 11
    with testing.Replay(file) as engine:
        assert careful.run(engine=engine).value == 11


def test_budgets() -> None:
    @rs.function
    def twice(s: rs.State) -> str:
        s += rs.user("go")
        return s.gen().value + s.gen().value

    words = testing.Scripted(["one two ", "three four five"])
    with words as engine:
        with pytest.raises(rs.BudgetExceededError, match="4 tokens") as caught:
            twice.run(engine=engine, budget=rs.Budget(tokens=4))
        assert caught.value.partial == "three"
    with testing.Scripted([testing.call("search", query="x")] * 2) as engine, pytest.raises(rs.BudgetExceededError):
        react.run("q", engine=engine, budget=rs.Budget(tool_calls=1))


def test_n_makes_branches() -> None:
    @rs.function
    def several(s: rs.State) -> list[str]:
        s += rs.user("go")
        return [v.value for v in s.gen(n=3)]

    with testing.Scripted(branches={(i,): [str(i)] for i in range(3)}) as engine:
        assert several.run(engine=engine).value == ["0", "1", "2"]
