from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixserve.bench.ask import Outcome, Output
from radixserve.bench.figures import Goodput, Setting, Spread, percentile, row_of

SETTING = Setting("w", "", 1, 0.0, 0, 2.0, 0.15)


def outcome(
    sent: float, first: float | None, gaps: list[float], *, error: str = "", cached: int | None = None, tokens: int | None = None
) -> Outcome:
    made = Outcome(Output(8), sent, first_s=first, gaps_s=gaps, error=error, prompt_tokens=10, cached_tokens=cached)
    made.num_chunks = 1 + len(gaps)
    made.reported_tokens = tokens
    made.ended_s = (first if first is not None else sent) + sum(gaps)
    return made


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    ordered = sorted(values)
    assert percentile(ordered, 0.5) == pytest.approx(statistics.median(ordered), abs=1e-6)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    assert percentile(ordered, 0.99) == pytest.approx(cuts[98], abs=1e-6)
    assert Spread.of([]) is None


def test_a_row_adds_up() -> None:
    row = row_of(SETTING, [outcome(1.0, 1.5, [0.1, 0.1], cached=4), outcome(2.0, 3.0, [0.5], cached=6)], 0.25, {"a": 1})
    assert row.wall_s == pytest.approx(2.5)
    assert (row.num_requests, row.num_errors, row.output_tokens, row.output_tokens_asked) == (2, 0, 5, 16)
    assert row.output_counted_by == "chunks"
    assert (row.prompt_tokens, row.cached_tokens, row.hit_rate) == (20, 10, 0.5)
    assert row.tokens_per_s == pytest.approx(5 / 2.5)
    assert row.ttft_s is not None
    assert row.ttft_s.p50 == pytest.approx(0.75)
    assert row.itl_s is not None
    assert row.itl_s.count == 3
    assert row.client_cpu_share == pytest.approx(0.1)


def test_the_first_wave_is_as_many_as_run_at_a_time_and_arrivals_at_a_rate_have_none() -> None:
    sent = [outcome(3.0, 3.1, []), outcome(0.0, 2.0, []), outcome(0.1, 1.1, []), outcome(4.0, 4.2, [], error="500: no")]
    row = row_of(Setting("w", "", 2, 0.0, 0, 2.0, 0.15), sent, 0.0, {})
    assert row.ttft_first_wave_s is not None
    assert (row.ttft_first_wave_s.count, row.ttft_first_wave_s.mean) == (2, pytest.approx(1.5))
    assert row.ttft_later_s is not None
    assert (row.ttft_later_s.count, row.ttft_later_s.p99) == (1, pytest.approx(0.1))
    open_arrivals = row_of(Setting("w", "", 2, 0.5, 0, 2.0, 0.15), sent, 0.0, {})
    assert open_arrivals.ttft_first_wave_s is None
    assert open_arrivals.ttft_later_s is None


def test_failed_requests_count_as_errors_and_not_as_speed() -> None:
    row = row_of(SETTING, [outcome(0.0, 1.0, [], error="500: no", cached=5), outcome(0.0, 1.0, [0.1])], 0.0, {})
    assert row.num_errors == 1
    assert row.errors == {"500: no": 1}
    assert row.output_tokens == 2
    assert row.hit_rate is None  # the one that said so failed
    assert row.goodput.share == 0.5


def test_goodput_needs_both_limits() -> None:
    outcomes = [
        outcome(0.0, 1.0, [0.1, 0.1]),  # meets both
        outcome(0.0, 3.0, [0.1]),  # late
        outcome(0.0, 1.0, [0.01, 0.25]),  # on average within, one gap above
        outcome(0.0, 1.0, [0.3, 0.3]),  # slow
        outcome(0.0, None, []),  # wrote nothing
        outcome(0.0, 1.0, [], error="gone"),
    ]
    goodput = Goodput.of(outcomes, 10.0, 2.0, 0.15)
    assert (goodput.share, goodput.strict_share) == (2 / 6, 1 / 6)
    assert goodput.requests_per_s == pytest.approx(0.2)


def test_the_pace_of_a_request_is_by_tokens_not_by_pieces() -> None:
    # Ten tokens in two pieces: the gap is long, the pace is not.
    assert Goodput.of([outcome(0.0, 1.0, [0.9], tokens=10)], 2.0, 2.0, 0.15).share == 1.0
