"""Buckets against a simple model."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve_tokenizer.config import TenantConfig
from radixserve_tokenizer.tenants.quotas import Bucket, Quota

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 90_000)),
        st.tuples(st.just("ask"), st.integers(0, 500)),
        st.tuples(st.just("debt"), st.integers(-300, 300)),
    ),
    max_size=60,
)


@given(per_minute=st.integers(1, 300), steps=STEPS)
def test_a_bucket_is_what_its_rule_says(per_minute: int, steps: list[tuple[str, int]]) -> None:
    """The model: exact fractions, time in milliseconds."""
    bucket = Bucket(per_minute, 0.0)
    level, now_ms = Fraction(per_minute), 0
    for what, amount in steps:
        if what == "wait":
            now_ms += amount
            level = min(Fraction(per_minute), level + Fraction(amount * per_minute, 60_000))
        elif what == "debt":
            bucket.take(amount, now_ms / 1000)
            level = min(Fraction(per_minute), level - amount)
        else:
            needed = min(amount, per_minute)
            wait_s = bucket.wait_s(amount, now_ms / 1000)
            exact = max(Fraction(0), (needed - level) * 60 / per_minute)
            assert wait_s == pytest.approx(float(exact), abs=1e-4)
            if wait_s == 0:
                bucket.take(amount, now_ms / 1000)
                level -= amount
        assert bucket.level(now_ms / 1000) == pytest.approx(float(level), abs=1e-6)
        assert bucket.reset_s(now_ms / 1000) == pytest.approx(float((per_minute - level) * 60 / per_minute), abs=1e-4)


@given(per_minute=st.integers(1, 1000), amount=st.integers(0, 3000), spent=st.integers(0, 3000))
def test_after_the_time_it_names_there_is_room_and_not_before(per_minute: int, amount: int, spent: int) -> None:
    bucket = Bucket(per_minute, 7.0)
    bucket.take(spent, 7.0)
    wait_s = bucket.wait_s(amount, 7.0)
    if wait_s:
        assert bucket.wait_s(amount, 7.0 + wait_s * 0.9) > 0
    assert bucket.wait_s(amount, 7.0 + wait_s + 1e-6) == 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.level(50.0) == 0
    assert bucket.level(101.0) == pytest.approx(1)


def test_a_quota_names_the_longest_wait() -> None:
    quota = Quota(TenantConfig(name="a", requests_per_minute=1, tokens_per_minute=600), 0.0)
    assert quota.wait_s(600, 0.0)[0] == 0
    quota.admit(600, 0.0)
    assert quota.wait_s(600, 0.0) == (pytest.approx(60), "tokens")
    assert quota.wait_s(10, 0.0) == (pytest.approx(60), "requests")
    limits = quota.limits(30.0)
    assert limits is not None
    assert (limits.limit_requests, limits.remaining_requests, limits.reset_requests_s) == (1, 0, pytest.approx(30))
    assert (limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_s) == (600, 300, pytest.approx(30))


def test_no_limit_is_no_limit() -> None:
    quota = Quota(TenantConfig(name="a"), 0.0)
    quota.admit(10**9, 0.0)
    assert quota.wait_s(10**9, 0.0)[0] == 0
    assert quota.debt_s(0.0) == 0
    assert quota.limits(0.0) is None
    assert not quota.counts_tokens
