"""What a tenant's patience is made of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve_runtime.scheduler.patience import Patience


def learned(*pauses_s: float) -> Patience:
    patience = Patience()
    for pause_s in pauses_s:
        patience.came_back(pause_s)
    return patience


def test_the_usual_pause_is_what_one_finds_who_looks_in() -> None:
    """Of as many pauses of 1 s as there are of a millisecond nearly all of the time is in those of 1 s."""
    assert learned().pause_s == math.inf
    assert learned(2.0, 2.0, 2.0).pause_s == pytest.approx(2.0)
    assert learned(*[0.001, 1.0] * 50).pause_s == pytest.approx(1.0, rel=0.01)
    assert learned(0.0, 0.0).pause_s == math.inf


def test_while_nobody_has_come_back_all_idleness_counts() -> None:
    patience = learned()
    patience.idled(0.0, 1.0)
    assert patience.idle_left_s(100.0, 1.5) == pytest.approx(0.5)
    assert patience.idle_left_s(200.0, 1.0) == 0.0


def test_idleness_of_a_pause_or_two_ago_is_forgotten() -> None:
    patience = learned(1.0)
    patience.idled(0.0, 0.5)
    soon, later = patience.idle_left_s(0.6, 0.7), patience.idle_left_s(5.0, 0.7)
    assert soon < later
    assert later == pytest.approx(-math.log(1.0 - 0.7), abs=0.02)


def test_a_prefill_that_takes_longer_than_a_pause_is_never_worth_it() -> None:
    patience = learned(1.0)
    patience.idled(0.0, 50.0)
    assert patience.idle_left_s(50.0, 1.1) == math.inf


@given(
    pauses_s=st.lists(st.floats(0.001, 100.0), max_size=8),
    idle=st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)), max_size=8),
    enough_s=st.floats(0.001, 50.0),
)
def test_after_the_time_that_is_left_it_is_enough(
    pauses_s: list[float], idle: list[tuple[float, float]], enough_s: float
) -> None:
    patience, now_s = learned(*pauses_s), 0.0
    for gap_s, idle_s in idle:
        patience.idled(now_s + gap_s, now_s + gap_s + idle_s)
        now_s += gap_s + idle_s
    left_s = patience.idle_left_s(now_s, enough_s)
    assert left_s >= 0.0
    if left_s < math.inf:
        patience.idled(now_s, now_s + left_s)
        assert patience.idle_left_s(now_s + left_s, enough_s) <= 1e-6 * (1.0 + left_s)


def test_waits_in_vain_make_it_shorter() -> None:
    patience = learned()
    patience.admitted(1.0, in_vain=True)
    patience.admitted(2.0, in_vain=False)
    assert (patience.part, patience.newcomer_s) == (0.5, 2.0)
