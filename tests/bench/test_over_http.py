from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.bench.ask import BenchError, Outcome, Output
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.measure import Plan, measure
from radixserve.bench.over_http import HttpTarget
from tests.bench.fakes import FakeOpenAI, count_words, openai_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HELLO = [("user", "hello there")]


def with_target(fake: FakeOpenAI, use: Callable[[HttpTarget], Awaitable[Any]], **settings: Any) -> Any:
    async def run() -> Any:
        target = await HttpTarget.open(url, **settings)
        try:
            return await use(target)
        finally:
            await target.close()

    with openai_server(fake) as url:
        return asyncio.run(run())


async def ask(target: HttpTarget, output: Output | None = None) -> Outcome:
    return await target.converse().say(HELLO, output or Output(5), "label")


def test_an_answer_is_timed_and_counted() -> None:
    outcome = with_target(FakeOpenAI(), ask)
    assert (outcome.error, outcome.label) == ("", "label")
    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.cached_tokens, outcome.num_chunks) == (
        5,
        count_words(HELLO),
        2,
        5,
    )
    assert outcome.texts == ["yes " * 5]
    assert outcome.sent_s <= outcome.first_s <= outcome.ended_s
    assert len(outcome.gaps_s) == 4


def test_choices_have_gaps_of_their_own() -> None:
    outcome = with_target(FakeOpenAI(), lambda target: ask(target, Output(5, n=3)))
    assert len(outcome.texts) == 3
    assert len(outcome.gaps_s) == 3 * 4
    assert outcome.output_tokens == 15


def test_what_is_asked_is_sent() -> None:
    fake = FakeOpenAI()
    schema = {"type": "object"}

    async def use(target: HttpTarget) -> None:
        await ask(target, Output(5, n=2, temperature=0.5, seed=3, schema=schema))
        await ask(target, Output(6, exact=False))

    with_target(fake, use, model="named", extra_body={"priority": 3})
    first, second = fake.bodies[-2:]
    assert (first["model"], first["max_tokens"], first["n"], first["temperature"], first["seed"]) == ("named", 5, 2, 0.5, 3)
    assert first["response_format"]["json_schema"]["schema"] == schema
    assert (first["ignore_eos"], first["priority"]) == (True, 3)
    assert "ignore_eos" not in second
    assert "response_format" not in second


@pytest.mark.parametrize(
    ("refused", "has", "note"),
    [
        ((), {"ignore_eos": True, "max_tokens": 5}, ""),
        (("ignore_eos",), {"min_tokens": 5, "max_tokens": 5}, ""),
        (("ignore_eos", "min_tokens"), {"max_tokens": 5}, "neither ignore_eos nor min_tokens"),
        (("ignore_eos", "min_tokens", "stream_options"), {"max_tokens": 5}, "does not count tokens"),
        (("ignore_eos", "min_tokens", "max_tokens"), {"max_completion_tokens": 5}, "neither ignore_eos"),
    ],
)
def test_fields_that_a_server_refuses_are_not_sent(refused: tuple[str, ...], has: dict[str, Any], note: str) -> None:
    fake = FakeOpenAI(refused_fields=frozenset(refused))

    async def use(target: HttpTarget) -> tuple[Outcome, list[str]]:
        return await ask(target), target.notes

    outcome, notes = with_target(fake, use)
    assert outcome.error == ""
    assert outcome.output_tokens == 5
    assert has.items() <= fake.bodies[-1].items()
    assert not set(refused) & set(fake.bodies[-1])
    assert note in " ".join(notes)


@pytest.mark.parametrize("has_tokenize", [True, False])
def test_prompts_are_counted_by_tokenize_or_by_usage(has_tokenize: bool) -> None:
    fake = FakeOpenAI(has_tokenize=has_tokenize)

    async def use(target: HttpTarget) -> tuple[int, int]:
        before = len(fake.bodies)
        return await target.count([("system", "a b"), ("user", "c")]), len(fake.bodies) - before

    assert with_target(fake, use) == (count_words([("system", "a b"), ("user", "c")]), 0 if has_tokenize else 1)


def test_a_conversation_grows_and_forks() -> None:
    fake = FakeOpenAI()

    async def use(target: HttpTarget) -> None:
        conversation = target.converse()
        await conversation.say(HELLO, Output(1))
        left, right = await conversation.fork(2)
        await left.say([("user", "left")], Output(1))
        await right.say([("user", "right")], Output(1))

    with_target(fake, use)
    said = [[(one["role"], one["content"]) for one in body["messages"]] for body in fake.bodies[-2:]]
    assert said == [[*HELLO, ("assistant", "yes "), ("user", side)] for side in ("left", "right")]


def test_errors_are_kept_with_what_the_server_said() -> None:
    outcome = with_target(FakeOpenAI(fails_on="there"), ask)
    assert outcome.error == "503: overloaded"
    outcome = with_target(FakeOpenAI(), lambda target: ask(target, Output(5)))
    assert outcome.error == ""
    fake = FakeOpenAI()

    async def cut(target: HttpTarget) -> Outcome:
        fake.breaks_off = True
        return await ask(target)

    assert "[DONE]" in with_target(fake, cut).error


@pytest.mark.parametrize(
    ("fake", "settings", "says"),
    [
        (FakeOpenAI(key="secret"), {}, "401: who are you"),
        (FakeOpenAI(fails_on="Hello"), {}, "503: overloaded"),
        (FakeOpenAI(refused_fields=frozenset(["messages"])), {}, "unknown field messages"),
    ],
)
def test_a_server_that_can_not_be_measured_says_why(fake: FakeOpenAI, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        with_target(fake, ask, **settings)


def test_no_server() -> None:
    with pytest.raises(BenchError, match="no server answers"):
        asyncio.run(HttpTarget.open("http://127.0.0.1:9"))


def test_keys_are_bearer_tokens() -> None:
    assert with_target(FakeOpenAI(key="secret"), ask, keys=["secret"]).error == ""


def test_a_workload_against_a_server_without_tokenize() -> None:
    async def use(target: HttpTarget) -> Any:
        return await measure(target, Plan([WORKLOADS["batch"]], {"requests": 3, "output_tokens": 4}, warmup=False))

    report = with_target(FakeOpenAI(has_tokenize=False), use)
    [row] = report.rows
    assert (row.num_errors, row.output_tokens, row.output_counted_by) == (0, 12, "usage")
    assert row.prompt_tokens == 3 * 128
    assert row.hit_rate == pytest.approx(2 / 128)
