"""The engine's core with a tiny real model: the same answer whatever happens around a request."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from radixserve_runtime.protocol import (
    Base,
    Cancel,
    Drop,
    Fork,
    Generate,
    Hello,
    NeedTokens,
    Owner,
    Rejected,
    Sampling,
    SetWeights,
    log_hash,
)
from tests.support.engine_driver import Driver
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeDriver = Callable[..., Driver]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def make(model: Path) -> MakeDriver:
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    vocabulary = tuple(b"%d," % i for i in range(size))

    def build(**settings: Any) -> Driver:
        return Driver(model, vocabulary=vocabulary, eos=(0,), **settings)

    return build


def prompts(count: int, length: int, shared: int = 0) -> list[list[int]]:
    """Random prompts that begin with the same `shared` tokens."""
    rng = random.Random(7)
    start = [rng.randrange(10, 300) for _ in range(shared)]
    return [start + [rng.randrange(10, 300) for _ in range(length - shared)] for _ in range(count)]


@pytest.fixture(scope="module")
def expected(make: MakeDriver) -> list[list[int]]:
    driver = make(prefix_cache=False, max_batch_tokens=1024)
    return [driver.generate(prompt, max_tokens=24, ignore_eos=True).token_ids for prompt in prompts(16, 90, 50)]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_cache": False},
        {"max_batch_tokens": 16},
        {"max_batch_tokens": 64, "page_size_tokens": 1},
        {"kv_tokens": 512},
        {"max_running": 3},
        {"schedule": "static", "max_running": 4, "max_queue_delay_ms": 1.0},
        {"schedule": "dynamic", "max_running": 4, "max_queue_delay_ms": 1.0},
    ],
    ids=str,
)
def test_same_greedy_answer(make: MakeDriver, expected: list[list[int]], settings: dict[str, Any], backend: str) -> None:
    driver = make(backend=backend, **settings)
    ids = [driver.submit(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts(16, 90, 50)]
    driver.run()
    assert [driver.answers[i].token_ids for i in ids] == expected
    stats = driver.core.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert stats.pages_locked == 0


def test_same_greedy_answer_after_preemption(make: MakeDriver) -> None:
    asked = prompts(6, 40)
    whole = make(prefix_cache=False)
    expected = [whole.generate(prompt, max_tokens=150, ignore_eos=True).token_ids for prompt in asked]
    for settings in ({}, {"prefix_cache": False}, {"page_size_tokens": 1}):
        driver = make(kv_tokens=512, **settings)
        ids = [driver.submit(prompt, max_tokens=150, ignore_eos=True) for prompt in asked]
        driver.run()
        assert driver.core.stats().num_preemptions > 0
        assert [driver.answers[i].token_ids for i in ids] == expected
        assert driver.core.stats().pages_locked == 0


def test_a_shared_prompt_is_computed_once(make: MakeDriver) -> None:
    driver = make()
    for prompt in prompts(16, 210, 200):
        driver.submit(prompt, max_tokens=4, ignore_eos=True)
    driver.run()
    assert driver.core.stats().num_prompt_tokens_computed <= 200 + 16 * (10 + 16)


def test_seeded_draws_do_not_depend_on_the_batch(make: MakeDriver) -> None:
    alone = make()
    drawn = [alone.generate(p, temperature=1.0, seed=i, top_p=0.9, max_tokens=12).token_ids for i, p in enumerate(prompts(8, 20))]
    together = make()
    ids = [together.submit(p, temperature=1.0, seed=i, top_p=0.9, max_tokens=12) for i, p in enumerate(prompts(8, 20))]
    together.run()
    assert [together.answers[i].token_ids for i in ids] == drawn
    assert len({tuple(d) for d in drawn}) == 8


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_prompt_logprobs_are_whole_and_equal_whatever_the_chunks(make: MakeDriver, chunk: int) -> None:
    prompt = prompts(1, 200)[0]
    driver = make(max_batch_tokens=chunk)
    answers = [driver.generate(prompt, max_tokens=1, prompt_logprobs=1) for _ in range(2)]
    whole = make(max_batch_tokens=512).generate(prompt, max_tokens=1, prompt_logprobs=1)
    for answer in answers:
        assert [entry.token_id for entry in answer.prompt_logprobs] == prompt[1:]
        assert [e.logprob for e in answer.prompt_logprobs] == pytest.approx([e.logprob for e in whole.prompt_logprobs], abs=1e-4)
        assert answer.finished is not None
        assert answer.finished.usage.cached_tokens == 0


def test_scores_equal_separate_prompt_logprobs(make: MakeDriver) -> None:
    driver = make()
    prompt = prompts(1, 40)[0]
    options = [[11, 12], [13], [14, 15, 16, 17]]
    request_id = driver.submit_score(prompt, options)
    driver.run()
    scored = driver.answers[request_id].scored
    assert scored is not None
    for option, got in zip(options, scored.logprobs, strict=True):
        alone = make(prefix_cache=False).generate(prompt + option, max_tokens=0, prompt_logprobs=0)
        assert list(got) == pytest.approx([e.logprob for e in alone.prompt_logprobs[len(prompt) - 1 :]], abs=1e-4)


def test_scores_share_their_prefix(make: MakeDriver) -> None:
    driver = make()
    driver.submit_score(prompts(1, 200)[0], [[20 + i, 21] for i in range(8)])
    driver.run()
    assert driver.core.stats().num_batched_tokens <= 200 + 8 * 4


def test_cancel_frees_within_one_step(make: MakeDriver) -> None:
    driver = make()
    request_id = driver.submit(prompts(1, 40)[0], max_tokens=1000, ignore_eos=True)
    for _ in range(5):
        driver.step()
    driver.core.handle(Cancel(request_ids=(request_id, 999)))
    driver.collect()
    finished = driver.answers[request_id].finished
    assert finished is not None
    assert finished.reason == "abort"
    assert driver.core.stats().pages_locked == 0
    assert not driver.core.has_work


def test_one_bad_sequence_fails_alone(make: MakeDriver) -> None:
    driver = make()
    good = [driver.submit(p, max_tokens=6, ignore_eos=True) for p in prompts(3, 30)]
    bad = driver.submit(prompts(4, 60)[3], max_tokens=6, ignore_eos=True)
    decoder = driver.core._stepper._executor._model
    forward = decoder.forward

    def failing(token_ids: Any, batch: Any, rows: Any) -> Any:
        if 60 in batch.kv_len.tolist():
            raise RuntimeError("boom")
        return forward(token_ids, batch, rows)

    decoder.forward = failing  # type: ignore[method-assign]
    driver.run()
    assert driver.answers[bad].failed is not None
    assert "boom" in driver.answers[bad].failed.message
    expected = make()
    assert [driver.answers[i].token_ids for i in good] == [
        expected.generate(p, max_tokens=6, ignore_eos=True).token_ids for p in prompts(3, 30)
    ]
    assert driver.core.stats().pages_locked == 0


def test_nan_logits_fail_alone(make: MakeDriver) -> None:
    driver = make()
    good = driver.submit(prompts(1, 30)[0], max_tokens=4, ignore_eos=True)
    bad = driver.submit(prompts(2, 33)[1], max_tokens=4, ignore_eos=True)
    decoder = driver.core._stepper._executor._model
    forward = decoder.forward

    def poisoned(token_ids: Any, batch: Any, rows: Any) -> Any:
        logits = forward(token_ids, batch, rows)
        if logits.shape[0] == 2:
            logits[1] = float("nan")
        return logits

    decoder.forward = poisoned  # type: ignore[method-assign]
    driver.run()
    assert len(driver.answers[good].token_ids) == 4
    assert driver.answers[bad].failed is not None


def test_a_draw_that_raises_fails_alone(make: MakeDriver) -> None:
    driver = make()
    good = driver.submit(prompts(1, 30)[0], max_tokens=4, ignore_eos=True)
    bad = driver.submit(prompts(2, 30)[1], max_tokens=4, temperature=float("nan"))
    negative = driver.submit(prompts(2, 30)[1], max_tokens=-5)
    driver.run()
    assert driver.answers[good].token_ids == make().generate(prompts(1, 30)[0], max_tokens=4, ignore_eos=True).token_ids
    assert driver.answers[bad].failed is not None
    assert driver.answers[negative].failed is not None
    assert driver.core.stats().pages_locked == 0


def test_stop_strings_end_at_once_and_say_what_to_cut(make: MakeDriver) -> None:
    driver = make()
    prompt = prompts(1, 30)[0]
    free = driver.generate(prompt, max_tokens=8, ignore_eos=True).token_ids
    stop = b"%d,%d" % (free[2], free[3])
    answer = driver.generate(prompt, max_tokens=8, ignore_eos=True, stop=(stop,))
    assert answer.token_ids == free[:4]
    assert answer.finished is not None
    assert (answer.finished.reason, answer.finished.stop, answer.finished.cut_bytes) == ("stop", stop, len(stop) + 1)


def test_a_base_that_is_not_here_is_asked_for(make: MakeDriver) -> None:
    driver = make()
    prompt = prompts(1, 30)[0]
    driver.core.handle(Fork(parent_id=50, child_ids=(51,), base=Base(length=3, hash=1)))
    driver.core.handle(
        Generate(request_id=900, branch_id=51, base=Base(length=3, hash=1), sampling=Sampling(max_tokens=1, seed=0))
    )
    assert driver.core.take_events() == [NeedTokens(request_id=900, branch_id=51)]
    driver.core.handle(Fork(parent_id=60, child_ids=(61, 62), base=Base(new_ids=tuple(prompt))))
    driver.core.handle(
        Generate(
            request_id=901, branch_id=62, base=Base(length=30, hash=log_hash(prompt)), sampling=Sampling(max_tokens=1, seed=0)
        )
    )
    driver.core.handle(Drop(branch_ids=(60, 61, 62)))
    assert driver.core.take_events() == []
    assert driver.core.step()


def test_tenants_do_not_share(make: MakeDriver) -> None:
    driver = make()
    prompt = prompts(1, 64)[0]
    cached = []
    for owner in (
        Owner(tenant="a"), Owner(tenant="a"), Owner(tenant="b"), Owner(tenant="a", cache_salt="x"), Owner(tenant="x"),
    ):  # fmt: skip
        answer = driver.answers[driver.submit(prompt, owner=owner)]
        driver.run()
        assert answer.finished is not None
        cached.append(answer.finished.usage.cached_tokens)
        assert answer.cached_tokens == [cached[-1], *([-1] * (len(answer.token_ids) - 1))]  # it is told with the first token
    assert cached == [0, 63, 0, 0, 0]


def test_a_new_hello_cancels_and_bad_ones_are_rejected(make: MakeDriver) -> None:
    driver = make()
    driver.submit(prompts(1, 64)[0])
    driver.step()
    driver.core.handle(Hello(version=99, fingerprint="x", vocabulary=(), eos_token_ids=()))
    assert isinstance(driver.core.take_events()[-1], Rejected)
    driver.core.handle(Hello(version=1, fingerprint="x", vocabulary=(b"a",) * 100_000, eos_token_ids=()))
    assert isinstance(driver.core.take_events()[-1], Rejected)
    assert not driver.core.has_work
    assert driver.core.stats().pages_locked == 0


def test_weights_of_tenants_are_taken_while_it_runs(make: MakeDriver) -> None:
    driver = make()
    driver.core.handle(SetWeights(weights={"a": 3.0}))
    assert driver.generate([1, 2, 3], max_tokens=2, ignore_eos=True).token_ids
    assert not driver.core.take_events()
    driver.core.handle(SetWeights(weights={"a": 0.0}))
    [failed] = driver.core.take_events()
    assert "must be a positive number" in failed.message  # type: ignore[union-attr]
