"""What the DSL promises of the server, on real processes with a tiny random model: attempts, budgets, branches, leases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import radixserve as rs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[rs.Engine]:
    with rs.Engine(str(tiny_model), dtype="float32", threads=1, kv_tokens=4096, log_level="warning") as running:
        yield running


def test_attempts_repeat_by_the_run_s_seed_and_leave_nothing_behind(engine: rs.Engine) -> None:
    @rs.function
    def judged(s: rs.State) -> tuple[list[str], str]:
        s += rs.user("A number, please.")
        (other,) = s.fork(1)
        seen: list[str] = []

        def small(text: str) -> bool:
            seen.append(text)
            return text[0] in "012"

        v = s.gen(regex="[0-9]{3}", validate=small, retries=60)
        w = s.gen(max_tokens=4, ignore_eos=True)
        other += rs.user("It was", v)
        assert other.gen(max_tokens=1, ignore_eos=True).text is not None
        assert v.value[0] in "012"
        # What was refused is in no prompt: the next generation goes on from the accepted text alone.
        assert w.usage.prompt_tokens == v.usage.prompt_tokens + len(v.token_ids)
        return seen, w.text

    first, again = judged.run(engine=engine, seed=5), judged.run(engine=engine, seed=5)
    assert first.value == again.value
    attempts, _ = first.value
    assert len(attempts) > 1
    assert len(set(attempts)) > 1
    other_seed = judged.run(engine=engine, seed=6).value
    assert other_seed != first.value


def test_a_value_refused_for_good_leaves_the_branch_as_it_was(engine: rs.Engine) -> None:
    @rs.function
    def refused(s: rs.State) -> tuple[int, int]:
        s += rs.user("A number, please.")
        v = s.gen(regex="[0-9]", validate=lambda text: False, retries=1, seed=1)
        with pytest.raises(rs.InvalidValueError, match="none of 2 attempts"):
            _ = v.value
        w = s.gen(max_tokens=1, ignore_eos=True)
        plain = s.fork(1)[0]
        return w.usage.prompt_tokens, plain.gen(max_tokens=1, ignore_eos=True).usage.prompt_tokens

    before, after = refused.run(engine=engine, seed=1).value
    assert after == before + 1


def test_a_budget_of_tokens_ends_a_program(engine: rs.Engine) -> None:
    @rs.function
    def greedy(s: rs.State) -> str:
        s += rs.user("Talk.")
        first = s.gen(max_tokens=10, ignore_eos=True)
        second = s.gen(max_tokens=10, ignore_eos=True)
        assert len(first.token_ids) == 10
        return second.value

    with pytest.raises(rs.BudgetExceededError, match=r"gen at .*test_dsl_engine\.py") as caught:
        greedy.run(engine=engine, budget=rs.Budget(tokens=12))
    assert caught.value.used is not None
    assert caught.value.used.tokens == 10
    assert greedy.run(engine=engine, budget=rs.Budget(tokens=20)).value is not None


def test_n_drafts_differ_and_go_on_by_themselves(engine: rs.Engine) -> None:
    @rs.function
    def drafts(s: rs.State) -> list[str]:
        s += rs.user("Write.")
        made = s.gen(n=4, max_tokens=8, ignore_eos=True)
        more = [draft.branch.gen(max_tokens=2, ignore_eos=True) for draft in made]
        assert all(then.usage.prompt_tokens == draft.usage.prompt_tokens + 8 for draft, then in zip(made, more, strict=True))
        return [draft.text for draft in made]

    first = drafts.run(engine=engine, seed=3).value
    assert len(set(first)) == 4
    assert drafts.run(engine=engine, seed=3).value == first


def test_a_lease_keeps_what_the_branch_holds(engine: rs.Engine) -> None:
    @rs.function
    def crowd(s: rs.State, name: int) -> None:
        s += rs.user(f"{name} " * 150)
        s.gen(max_tokens=1, ignore_eos=True).settle()

    @rs.function
    def pausing(s: rs.State, ttl_s: float) -> int:
        s += rs.user("Keep this. " * 20)
        v = s.gen(max_tokens=1, ignore_eos=True)
        v.settle()
        if ttl_s:
            s.lease(ttl_s)
        time.sleep(0.5)  # what has just ended is kept for a moment, lease or not
        crowd.run_batch(list(range(30)), engine=engine, concurrency=1, progress=False)
        w = s.gen(max_tokens=1, ignore_eos=True)
        return v.usage.prompt_tokens - w.usage.cached_tokens

    without, kept = pausing.run(0.0, engine=engine).value, pausing.run(30.0, engine=engine).value
    assert kept <= 16 < 100 < without
