"""The stop matcher against plain searching."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime.protocol import Sampling
from radixserve_runtime.sampling.ends import end_token_ids
from radixserve_runtime.sampling.stops import StopMatcher, StopResult

small_bytes = st.binary(max_size=4).map(lambda data: bytes(97 + byte % 3 for byte in data))


def first_match(text: bytes, stops) -> tuple[int, bytes] | None:
    """(end, stop) of the match that ends first; of several the longest, which starts first."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return end, max(matches, key=len)
    return None


def held(text: bytes, stops) -> int:
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


@settings(max_examples=500, deadline=None)
@given(
    stops=st.lists(small_bytes.filter(bool), min_size=1, max_size=5),
    pieces=st.lists(small_bytes, max_size=12),
)
def test_matches_what_searching_finds(stops, pieces):
    matcher = StopMatcher(tuple(stops), pieces)
    text = b""
    for token_id, piece in enumerate(pieces):
        text += piece
        result = matcher.feed(token_id)
        wanted = first_match(text, stops)
        if wanted is None:
            assert result == StopResult(hold_bytes=held(text, stops))
            continue
        end, stop = wanted
        assert result.matched
        assert (result.stop, result.cut_bytes) == (stop, len(text) - end + len(stop))
        return


def test_reported_bug_02_only_the_prefix_is_held():
    vocabulary = [bytes([byte]) for byte in b"ABCDEFGHIJK"]
    matcher = StopMatcher((b"DEFGHIJ",), vocabulary)
    results = [matcher.feed(token_id) for token_id in range(10)]
    assert [result.hold_bytes for result in results] == [0, 0, 0, 1, 2, 3, 4, 5, 6, 0]
    assert results[-1] == StopResult(stop=b"DEFGHIJ", cut_bytes=7)


def test_held_text_is_released_when_it_cannot_match():
    matcher = StopMatcher((b"DEX",), [b"D", b"E", b"F"])
    assert [matcher.feed(token_id).hold_bytes for token_id in (0, 1, 2, 0)] == [1, 2, 0, 1]


def test_stop_inside_a_token_cuts_what_follows_it():
    matcher = StopMatcher((b"\n\n",), [b"one\n", b"\nand more"])
    assert matcher.feed(0) == StopResult(hold_bytes=1)
    assert matcher.feed(1) == StopResult(stop=b"\n\n", cut_bytes=len(b"\n\nand more"))


def test_before_min_tokens_nothing_ends():
    matcher = StopMatcher((b"ab",), [b"ab", b"a", b"b"])
    assert matcher.feed(0, may_end=False) == StopResult()
    assert matcher.feed(1, may_end=False) == StopResult(hold_bytes=1)
    assert matcher.feed(2) == StopResult(stop=b"ab", cut_bytes=2)


def test_control_tokens_have_no_bytes():
    matcher = StopMatcher((b"ab",), [b"a", b"", b"b"])
    assert matcher.feed(0).hold_bytes == 1
    assert matcher.feed(1).hold_bytes == 1
    assert matcher.feed(99).hold_bytes == 1  # a padding row of the LM head
    assert matcher.feed(2).matched


def test_long_stops_cost_constant_time_a_byte():
    """Work is counted, not timed: failure steps are at most one a byte on average."""
    stops = tuple(bytes([97]) * 1023 + bytes([98 + index]) for index in range(16))
    matcher = StopMatcher(stops, [b"a" * 500, b"z"])
    steps = 0
    inner = matcher._fail

    class Counting(list):
        def __getitem__(self, index):
            nonlocal steps
            steps += 1
            return super().__getitem__(index)

    matcher._fail = Counting(inner)
    for _ in range(40):
        matcher.feed(0)
    assert steps <= 40 * 500
    assert matcher.feed(0).hold_bytes == 1023
    assert matcher.feed(1).hold_bytes == 0


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher((b"",), [])


def test_no_stops():
    assert StopMatcher((), [b"a"]).feed(0) == StopResult()


def test_ends():
    def ends(**fields):
        return end_token_ids(Sampling(max_tokens=1, seed=0, **fields), [2, 3])

    assert ends() == {2, 3}
    assert ends(stop_token_ids=(7,)) == {2, 3, 7}
    assert ends(ignore_eos=True) == frozenset()
    assert ends(ignore_eos=True, stop_token_ids=(2,)) == {2}
