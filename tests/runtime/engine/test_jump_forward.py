"""Text that a grammar forces takes one step, and the answer is what it would have been without."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.engine.executor import Executor
from radixserve_runtime.grammar.cutter import Cutter
from radixserve_runtime.grammar.request import RequestGrammar
from radixserve_runtime.protocol import Cancel, GrammarRef
from tests.support.engine_driver import Driver
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve_runtime.scheduler.plan import StepPlan

EOS = 511
#: Bytes, and words that overlap, so that there is more than one way to cut a text.
WORDS = [
    b'{"',
    b'": ',
    b'"name',
    b'name"',
    b'name": "',
    b'", "',
    b"ame",
    b"me",
    b'"}',
    b"get_",
    b"weather",
    b"et_w",
    b"arguments",
]
VOCABULARY = (*(bytes([byte]) for byte in range(256)), *WORDS, *([b"<unused>"] * (EOS - 256 - len(WORDS))), b"")
GRAMMAR = r"""
root ::= "{\"name\": \"" name "\", \"arguments\": {" field "}}"
name ::= "get_weather" | "get_time"
field ::= "\"city\": \"" [a-z]{1,12} "\"" | "\"days\": " [0-9]{1,3}
"""
PATTERN = r'\{"name": "get_(weather|time)", "arguments": \{("city": "[a-z]{1,12}"|"days": [0-9]{1,3})\}\}'


def make(model: Path, **options: Any) -> Driver:
    return Driver(model, vocabulary=VOCABULARY, eos=(EOS,), **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"))


def answers(driver: Driver, count: int = 6, grammar: str = GRAMMAR, **sampling: Any) -> list[list[int]]:
    ref = GrammarRef(key=grammar, payload=grammar.encode())
    prompts = [[(7 * i + j) % 250 for j in range(20 + i)] for i in range(count)]
    options: dict[str, Any] = {"max_tokens": 120, "temperature": 1.0} | sampling
    ids = [driver.submit(prompt, seed=i, grammar=ref, **options) for i, prompt in enumerate(prompts)]
    driver.run()
    for i in ids:
        assert driver.answers[i].failed is None, driver.answers[i].failed
    return [driver.answers[i].token_ids for i in ids]


def text(token_ids: list[int]) -> str:
    return b"".join(VOCABULARY[token_id] for token_id in token_ids).decode()


@pytest.mark.parametrize(
    "options",
    [{}, {"prefix_cache": False}, {"max_batch_tokens": 16}, {"page_size_tokens": 1}, {"kv_tokens": 256}, {"max_running": 2}],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_tokens_in_fewer_steps(model: Path, options: dict[str, Any], temperature: float) -> None:
    plain = make(model, jump_forward=False, **options)
    expected = answers(plain, temperature=temperature)
    driver = make(model, **options)
    assert answers(driver, temperature=temperature) == expected
    stats = driver.core.stats()
    assert stats.num_output_tokens == sum(map(len, expected)) == plain.core.stats().num_output_tokens
    assert stats.num_accepted_draft_tokens > 0
    assert stats.num_steps < plain.core.stats().num_steps
    driver.check_idle()
    for token_ids in expected:
        assert re.fullmatch(PATTERN, text(token_ids)), text(token_ids)


def test_where_nothing_else_is_possible_a_token_costs_a_fraction_of_a_step(model: Path) -> None:
    driver = make(model)
    forced = 'root ::= "x" "' + "name" * 30 + '"'
    (token_ids,) = answers(driver, 1, forced)
    assert text(token_ids) == "x" + "name" * 30
    assert len(token_ids) > 30
    assert driver.core.stats().num_steps < len(token_ids)


@pytest.mark.parametrize("max_tokens", range(1, 24))
def test_limits_hold_inside_a_draft(model: Path, max_tokens: int) -> None:
    expected = answers(make(model, jump_forward=False), 2, max_tokens=max_tokens)
    driver = make(model)
    assert answers(driver, 2, max_tokens=max_tokens) == expected
    assert all(len(token_ids) <= max_tokens for token_ids in expected)
    assert driver.core.stats().pages_locked == 0


@pytest.mark.parametrize("stop", [b"name", b"argu", b'": {', b"er"])
def test_a_stop_string_inside_a_draft(model: Path, stop: bytes) -> None:
    plain, driver = make(model, jump_forward=False), make(model)
    assert answers(driver, stop=(stop,)) == answers(plain, stop=(stop,))
    for number, answer in driver.answers.items():
        assert answer.finished is not None
        other = plain.answers[number].finished
        assert other is not None
        assert (answer.finished.stop, answer.finished.cut_bytes) == (other.stop, other.cut_bytes)


def test_logprobs_and_penalties_are_the_same(model: Path) -> None:
    options: dict[str, Any] = {"logprobs": 2, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_tokens": 10}
    plain, driver = make(model, jump_forward=False), make(model)
    assert answers(driver, **options) == answers(plain, **options)
    for number, answer in driver.answers.items():
        theirs = plain.answers[number].logprobs
        assert [one.token_id for one in answer.logprobs] == [one.token_id for one in theirs]
        assert [one.logprob for one in answer.logprobs] == pytest.approx([one.logprob for one in theirs], abs=1e-4)


def test_a_cancelled_draft_leaves_nothing(model: Path) -> None:
    driver = make(model)
    ref = GrammarRef(key="g", payload=GRAMMAR.encode())
    number = driver.submit([1, 2, 3], seed=1, grammar=ref, max_tokens=100, temperature=1.0)
    for _ in range(3):
        driver.step()
    driver.core.handle(Cancel(request_ids=(number,)))
    driver.step()
    driver.check_idle()


def test_drafts_of_many_keep_within_the_batch_and_leave_room_for_prefill(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, int]] = []
    run = Executor.run

    def recording(self: Executor, plan: StepPlan) -> Any:
        decoded = sum(chunk.count for chunk in plan.chunks if not chunk.sequence.is_prefill)
        steps.append((decoded, sum(chunk.count for chunk in plan.chunks) - decoded))
        return run(self, plan)

    monkeypatch.setattr(Executor, "run", recording)
    driver = make(model, max_batch_tokens=48, max_running=12)
    text = 'root ::= "' + "ab" * 60 + '"'
    ref = GrammarRef(key="long", payload=text.encode())
    for i in range(8):
        driver.submit([i, 2, 3], seed=i, grammar=ref, max_tokens=100)
    for _ in range(3):
        driver.step()
    driver.submit(list(range(200)), seed=9, max_tokens=2)
    driver.run()
    assert max(decoded + prefilled for decoded, prefilled in steps) <= 48
    assert max(decoded for decoded, _ in steps) > 8, "there were drafts"
    assert any(decoded > 8 and prefilled for decoded, prefilled in steps), "and a prefill beside them"


def test_a_long_forced_text_is_not_found_anew_for_each_draft(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    forced = RequestGrammar.forced

    def counting(self: RequestGrammar) -> bytes:
        found.append(1)
        return forced(self)

    monkeypatch.setattr(RequestGrammar, "forced", counting)
    driver = make(model)
    ref = GrammarRef(key="long", payload=('root ::= "' + "abc" * 700 + '" [xy]').encode())
    number = driver.submit([1, 2, 3], seed=1, grammar=ref, max_tokens=1000)
    driver.run()
    assert b"".join(VOCABULARY[i] for i in driver.answers[number].token_ids) == b"abc" * 333 + b"a"
    assert len(found) == 1


@settings(max_examples=100, deadline=None)
@given(
    data=st.binary(max_size=40) | st.sampled_from([b'{"name": "get_weather", "arguments": {', b"weatherget_"]),
    limit=st.integers(0, 12),
)
def test_a_cut_is_the_beginning_of_the_text(data: bytes, limit: int) -> None:
    found = Cutter(VOCABULARY).cut(data, limit)
    assert len(found) <= limit
    joined = b"".join(VOCABULARY[token_id] for token_id in found)
    assert data.startswith(joined)
    assert len(found) == limit or joined == data


def test_what_no_token_fits_ends_the_cut() -> None:
    assert Cutter([b"", b"a", b"ab"]).cut(b"abxa", 9) == [2]
    assert Cutter([]).cut(b"a", 9) == []
