"""Guesses from a sequence's own text change how many steps an answer takes, and nothing else about it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_runtime.protocol import Cancel, GrammarRef, Owner
from tests.support.engine_driver import Driver
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

EOS = 511
VOCABULARY = (*(bytes([byte]) for byte in range(256)), *([b"<unused>"] * (EOS - 256)), b"")
PROMPTS = [[(7 * i + j % (5 + i)) % 250 for j in range(30 + i)] for i in range(6)]
#: Of two tokens the same come again and again, whatever the model.
LOOPING: dict[str, Any] = {"logit_bias": {65: 100.0, 66: 100.0}}


def make(model: Path, **options: Any) -> Driver:
    """By a clock of its own, so that the same guesses pay on every machine: a step takes as long whatever is in it."""
    ticks = itertools.count()
    return Driver(model, vocabulary=VOCABULARY, eos=(EOS,), clock=lambda: 0.01 * next(ticks), **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"))


def answers(driver: Driver, **sampling: Any) -> list[list[int]]:
    options: dict[str, Any] = {"max_tokens": 80} | LOOPING | sampling
    ids = [driver.submit(prompt, seed=i, **options) for i, prompt in enumerate(PROMPTS)]
    driver.run()
    for i in ids:
        assert driver.answers[i].failed is None, driver.answers[i].failed
    driver.check_idle()
    return [driver.answers[i].token_ids for i in ids]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "cpu"},
        {"backend": "cpu", "dtype": "bfloat16"},
        {"prefix_cache": False},
        {"max_batch_tokens": 16},
        {"page_size_tokens": 1},
        {"kv_tokens": 256},
        {"max_running": 2},
    ],
    ids=str,
)
def test_same_tokens_in_fewer_steps(model: Path, options: dict[str, Any]) -> None:
    plain, driver = make(model, prompt_lookup=False, **options), make(model, **options)
    expected = answers(plain)
    assert answers(driver) == expected
    stats, without = driver.core.stats(), plain.core.stats()
    assert stats.num_output_tokens == without.num_output_tokens == sum(map(len, expected))
    assert stats.num_draft_tokens >= stats.num_accepted_draft_tokens > 0
    assert stats.num_steps < without.num_steps
    assert without.num_draft_tokens == 0
    # What was guessed and not drawn is nowhere in the cache: what goes on from the middle of an answer goes on alike.
    for number, said in zip(range(100), expected, strict=False):
        going_on = [*PROMPTS[number], *said[:50]]
        assert driver.generate(going_on, max_tokens=30, **LOOPING).token_ids == said[50:]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"min_tokens": 10, "logit_bias": {7: 100.0, 9: 100.0, 11: -100.0}},
    ],
    ids=str,
)
def test_whatever_the_sampling(model: Path, sampling: dict[str, Any]) -> None:
    assert answers(make(model), **sampling) == answers(make(model, prompt_lookup=False), **sampling)


def test_logprobs_are_the_same(model: Path) -> None:
    plain, driver = make(model, prompt_lookup=False), make(model)
    assert answers(driver, logprobs=2) == answers(plain, logprobs=2)
    assert driver.core.stats().num_accepted_draft_tokens > 0
    for number, answer in driver.answers.items():
        theirs = plain.answers[number].logprobs
        assert [one.token_id for one in answer.logprobs] == [one.token_id for one in theirs]
        assert [one.logprob for one in answer.logprobs] == pytest.approx([one.logprob for one in theirs], abs=1e-4)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 17, 18])
def test_limits_hold_inside_a_guess(model: Path, max_tokens: int) -> None:
    found = answers(make(model), max_tokens=max_tokens)
    assert found == answers(make(model, prompt_lookup=False), max_tokens=max_tokens)
    assert {len(token_ids) for token_ids in found} == {max_tokens}


def test_ends_inside_a_guess(model: Path) -> None:
    (said, *_) = answers(make(model, prompt_lookup=False))
    for sampling in ({"stop": (bytes(said[40:46]),)}, {"stop_token_ids": (67,), "logit_bias": {65: 100.0, 67: 100.0}}):
        plain, driver = make(model, prompt_lookup=False), make(model)
        assert answers(driver, **sampling) == answers(plain, **sampling)
        for number, answer in driver.answers.items():
            mine, theirs = answer.finished, plain.answers[number].finished
            assert mine is not None
            assert theirs is not None
            assert (mine.reason, mine.stop, mine.stop_token_id, mine.cut_bytes) == (
                theirs.reason,
                theirs.stop,
                theirs.stop_token_id,
                theirs.cut_bytes,
            )


def test_beside_a_grammar(model: Path) -> None:
    """What the grammar forces is drafted first; between, its mask says what of a guess may be drawn."""
    ref = GrammarRef(key="g", payload=rb'root ::= "[" ("ab" | "cd" | "ab, "){6,30} "]"')
    outputs: list[list[list[int]]] = []
    for options in ({"prompt_lookup": False, "jump_forward": False}, {"jump_forward": False}, {}):
        driver = make(model, **options)
        outputs.append(answers(driver, grammar=ref, max_tokens=120, logit_bias={}))
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_cancelled_guess_leaves_nothing(model: Path) -> None:
    driver = make(model)
    number = driver.submit(PROMPTS[0], max_tokens=200)
    for _ in range(6):
        driver.step()
    driver.core.handle(Cancel(request_ids=(number,)))
    driver.step()
    driver.check_idle()


def test_a_tenant_is_charged_for_its_guesses(model: Path) -> None:
    """They are its work: what was guessed in vain too."""
    charges: list[float] = []
    for on in (False, True):
        driver = make(model, prompt_lookup=on)
        driver.submit(PROMPTS[0], owner=Owner(tenant="a"), max_tokens=80, temperature=1.0, seed=3, **LOOPING)
        driver.run()
        charges.append(driver.core.stats().tenants["a"].charge)
    wasted = driver.core.stats().num_draft_tokens - driver.core.stats().num_accepted_draft_tokens
    assert wasted > 0
    assert charges[1] > charges[0] + wasted  # 2 a token, less the context that it holds for fewer steps
