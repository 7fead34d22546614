"""`Scripted`: what it answers, in which order, and what it complains about."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

import radixserve_lang as rs
from radixserve_lang import testing


class Answer(BaseModel):
    steps: list[str]
    answer: int


@dataclass
class Point:
    x: int
    y: int


@rs.function
def ask(s: rs.State, question: str) -> str:
    s += rs.user(question)
    return s.gen(max_tokens=16).value


@rs.function
def vote(s: rs.State, question: str, n: int) -> int:
    s += rs.user(question)
    tally: Counter[int] = Counter()
    with s.fork(n) as branches:
        for v in rs.as_completed([b.gen(json=Answer) for b in branches]):
            tally[v.value.answer] += 1
            if tally.most_common(1)[0][1] > n // 2:
                break
    return tally.most_common(1)[0][0]


def test_answers_come_in_order_and_are_typed() -> None:
    @rs.function
    def several(s: rs.State) -> tuple[str, Answer, Point, list[int], bool, str, dict[str, float]]:
        s += rs.user("go")
        text, model, point = s.gen(), s.gen(json=Answer), s.gen(json=Point)
        numbers, flag = s.gen(json=list[int]), s.gen(json=bool)
        chosen, scores = s.select(["a", "b"]), s.score(["c", "d"])
        return text.value, model.value, point.value, numbers.value, flag.value, chosen.value, scores.value

    script = ["hello", Answer(steps=["s"], answer=4), Point(1, 2), [1, 2], True, "b", {"c": -3.0, "d": -1.0}]
    with testing.Scripted(script) as engine:
        run = several.run(engine=engine)
    assert run.value == ("hello", script[1], Point(1, 2), [1, 2], True, "b", {"c": -3.0, "d": -1.0})
    assert run.usage.num_ops == 7
    assert 0 < run.usage.cached_tokens < run.usage.prompt_tokens


def test_a_function_gets_the_text_of_the_branch() -> None:
    seen: list[str] = []

    def echo(text: str) -> str:
        seen.append(text)
        return text.rsplit("user: ", 1)[1].split("\n")[0].upper()

    @rs.function
    def two(s: rs.State) -> list[str]:
        s += (rs.system("Shout."), rs.user("one"))
        first = s.gen()
        s += rs.user("two")
        s += "well, "
        return [first.value, s.gen().value]

    with testing.Scripted(echo) as engine:
        assert two.run(engine=engine).value == ["ONE", "TWO"]
    assert seen == [
        "system: Shout.\nuser: one\nassistant: ",
        "system: Shout.\nuser: one\nassistant: ONE\nuser: two\nassistant: well, ",
    ]


def test_what_is_left_over_fails_the_test() -> None:
    with (
        pytest.raises(testing.ScriptError, match="the script has 2 answers left: 'b', 'c'"),
        testing.Scripted(["a", "b", "c"]) as engine,
    ):
        ask.run("x", engine=engine)
    with (
        pytest.raises(testing.ScriptError, match=r"the script of branch \(3,\) has 1 answer left"),
        testing.Scripted(branches={(3,): ["a"]}),
    ):
        pass
    engine = testing.Scripted(["a"])
    with pytest.raises(testing.ScriptError):
        engine.close()
    engine.close()


def test_an_error_of_the_test_itself_is_not_hidden() -> None:
    with pytest.raises(KeyError), testing.Scripted(["a"]):
        raise KeyError("mine")


def test_a_script_that_is_too_short_names_the_op_and_its_line() -> None:
    engine = testing.Scripted(["a"])
    ask.run("x", engine=engine)
    with pytest.raises(rs.OpError, match=r"gen at .*test_scripted\.py:\d+ in ask failed \(script_exhausted\)"):
        ask.run("y", engine=engine)
    with pytest.raises(testing.ScriptError, match=r"no answer left for gen at .*test_scripted\.py:\d+ in ask"):
        engine.close()


def test_branches_have_scripts_of_their_own() -> None:
    @rs.function
    def both(s: rs.State) -> list[str]:
        s += rs.user("go")
        a, b = s.fork(2)
        kid = b.fork(1)[0]
        # Sent in another order than their paths.
        values = [kid.gen(), b.gen(), a.gen(), s.gen()]
        return [value.value for value in values]

    with testing.Scripted(["root"], branches={(0,): ["a"], (1,): ["b"], (1, 0): ["kid"]}) as engine:
        assert both.run(engine=engine).value == ["kid", "b", "a", "root"]


def test_branches_of_threads_are_deterministic_by_path() -> None:
    @rs.function
    def threaded(s: rs.State) -> list[str]:
        s += rs.user("go")
        branches = list(s.fork(8))
        found = [""] * 8

        def work(i: int) -> None:
            found[i] = branches[i].gen().value

        threads = [threading.Thread(target=work, args=(i,)) for i in reversed(range(8))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    with testing.Scripted(branches={(i,): [f"answer {i}"] for i in range(8)}) as engine:
        assert threaded.run(engine=engine).value == [f"answer {i}" for i in range(8)]


def test_places_have_scripts_of_their_own() -> None:
    def judge(s: rs.State) -> rs.Var[str]:
        return s.select(["yes", "no"])

    @rs.function
    def judged(s: rs.State) -> tuple[str, str, str]:
        s += rs.user("go")
        return s.gen().value, judge(s).value, s.gen().value

    line = judge.__code__.co_firstlineno + 1
    for place in ("judge", f"test_scripted.py:{line}", f"testing/test_scripted.py:{line}"):
        with testing.Scripted(["one", "two"], at={place: ["no"]}) as engine:
            assert judged.run(engine=engine).value == ("one", "no", "two")


def test_then_answers_the_rest_and_running_never_ends() -> None:
    with testing.Scripted([{"steps": [], "answer": 7}] * 3, then=testing.RUNNING) as engine:
        assert vote.run("q", 5, engine=engine).value == 7
    with testing.Scripted(then="x") as engine:
        assert [run.value for run in ask.run_batch(["a"] * 5, engine=engine, progress=False)] == ["x"] * 5


def test_failures_and_exceptions() -> None:
    failure = testing.Failure("no room", code="context_length_exceeded", status=400, partial="so far")
    with testing.Scripted([failure, ValueError("odd"), lambda text: 1 / 0]) as engine:
        with pytest.raises(rs.OpError, match="no room") as caught:
            ask.run("x", engine=engine)
        assert (caught.value.code, caught.value.status, caught.value.partial) == ("context_length_exceeded", 400, "so far")
        with pytest.raises(rs.OpError, match="ValueError: odd"):
            ask.run("x", engine=engine)
        with pytest.raises(rs.OpError, match="ZeroDivisionError"):
            ask.run("x", engine=engine)


def test_a_failed_op_poisons_what_follows_on_its_branch() -> None:
    @rs.function
    def chain(s: rs.State) -> str:
        s += rs.user("go")
        first = s.gen()
        s += rs.user("then ", first)
        later = s.fork(1)[0].gen()
        with pytest.raises(rs.OpSkippedError, match="broken"):
            _ = later.value
        with pytest.raises(rs.OpError, match="broken"):
            _ = first.value
        return "seen"

    with testing.Scripted([testing.Failure("broken")]) as engine:
        assert chain.run(engine=engine).value == "seen"


def test_vars_are_filled_in() -> None:
    texts: list[str] = []

    def merge(text: str) -> str:
        texts.append(text)
        return "merged"

    @rs.function
    def join(s: rs.State) -> str:
        with s.fork(2) as branches:
            parts = [b.gen() for b in branches]
            s += rs.user("Merge: ", *parts)
            return s.gen().value

    with testing.Scripted([merge], branches={(0,): ["one "], (1,): ["two"]}) as engine:
        assert join.run(engine=engine).value == "merged"
    assert texts == ["user: Merge: one two\nassistant: "]


def test_streams_come_word_by_word() -> None:
    @rs.function
    def watched(s: rs.State) -> list[str]:
        s += rs.user("go")
        return list(s.gen())

    with testing.Scripted(["a few  words ", "streamed too"]) as engine:
        assert watched.run(engine=engine).value == ["a", " few", "  words", " "]
        stream = ask.stream("x", engine=engine)
        assert "".join(stream) == stream.run.value == "streamed too"


def test_cut_text_need_not_fit() -> None:
    @rs.function
    def parse(s: rs.State) -> int:
        return s.gen(json=int).value

    with (
        testing.Scripted([testing.Reply("1e", finish_reason="length")]) as engine,
        pytest.raises(rs.InvalidValueError, match="cut at max_tokens"),
    ):
        parse.run(engine=engine)


def test_answers_that_no_engine_could_give() -> None:
    @rs.function
    def odd(s: rs.State, kind: str) -> object:
        s += rs.user("go")
        if kind == "regex":
            return s.gen(regex="a+").value
        if kind == "json":
            return s.gen(json=Answer).value
        return s.select(["a", "b"]).value if kind == "select" else s.score(["a", "b"]).value

    cases = [
        ("regex", "b", "does not match regex"),
        ("json", "four", "is no JSON"),
        ("select", "c", "none of the options"),
        ("score", {"a": 1.0}, "scores of"),
        ("select", 3, "is no answer of select"),
        ("regex", testing.call("f"), "has no tools"),
    ]
    for kind, answer, message in cases:
        with (
            pytest.raises(testing.ScriptError, match=message),
            testing.Scripted([answer]) as engine,
            pytest.raises(rs.OpError, match=message),
        ):
            odd.run(kind, engine=engine)


def test_async_programs_and_batches() -> None:
    @rs.function
    async def both(s: rs.State) -> list[str]:
        s += rs.user("go")
        values = [b.gen() for b in s.fork(3)]
        return list(await asyncio.gather(*(_read(v) for v in values)))

    async def _read(v: rs.Var[str]) -> str:
        return await v

    with testing.Scripted(["a", "b", "c"] * 4) as engine:
        assert both.run(engine=engine).value == ["a", "b", "c"]
        assert [sorted(run.value) for run in both.run_batch([()] * 3, engine=engine, progress=False, concurrency=1)] == [
            ["a", "b", "c"]
        ] * 3


def test_no_socket_and_one_thread() -> None:
    before = threading.active_count()
    with testing.Scripted(["x"]) as engine:
        assert engine.client.url == "scripted"
        assert engine.client.query("health").result(5)["status"] == "ok"
        with pytest.raises(rs.QueryFailedError, match="no model"):
            engine.client.query("stats").result(5)
        assert ask.run("x", engine=engine).value == "x"
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    with pytest.raises(rs.ClientClosedError):
        ask.run("x", engine=engine)


def test_a_string_is_no_script() -> None:
    with pytest.raises(TypeError, match="list of answers"):
        testing.Scripted("abc")
