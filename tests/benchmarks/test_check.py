"""The stored baseline: counts are the same in every run and any difference is found; times have a tolerance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import check
from benchmarks.inprocess import counted
from benchmarks.inprocess.stack import Stack
from benchmarks.micro import wire
from radixserve_tokenizer import protocol
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model")


def test_counts_are_the_same_in_every_run_and_for_every_model(model: Path, tmp_path: Path) -> None:
    first = counted.count(model)
    assert first == counted.count(model)
    # Other weights draw other tokens, if any: what is counted does not depend on them.
    assert first == counted.count(write_tiny_checkpoint(tmp_path / "other", seed=5))
    assert first["chats"]["num_output_tokens"] == 4 * 12
    assert first["agents"]["num_output_tokens"] == 3 * 3 * 8
    assert first["fork"]["num_output_tokens"] == 8 * 6
    for counts in first.values():
        assert counts["num_prompt_tokens_computed"] + counts["num_cached_tokens"] == counts["num_prompt_tokens"]
        assert all(value > 0 for name, value in counts.items() if name != "num_preemptions")


def test_counts_see_work_that_is_lost(model: Path) -> None:
    """Without the prefix cache more is computed, and the comparison says so."""

    def tokens(**settings: Any) -> int:
        stack = Stack(model, **settings)
        counted.PARTS["agents"](stack)
        return stack.engine.stats().num_batched_tokens

    assert tokens(prefix_cache=False) > 3 * tokens()


def test_a_failed_op_is_not_counted_silently(model: Path) -> None:
    stack = Stack(model)
    stack.send([protocol.Open(program=1), protocol.Gen(program=1, op=0, branch=9, var=0)])
    with pytest.raises(RuntimeError, match="failed"):
        stack.settle()


def test_every_difference_of_counts_is_named() -> None:
    stored = {"a": {"x": 1, "y": 2}, "b": {"x": 1}}
    assert check.compare_counts(stored, stored) == []
    problems = check.compare_counts(stored, {"a": {"x": 2}, "c": {"x": 1}})
    assert problems == [
        "a: x is 2, stored is 1",
        "a: y is None, stored is 2",
        "b: x is None, stored is 1",
        "c: x is 1, stored is None",
    ]


def test_times_have_a_tolerance() -> None:
    stored = {"a": 1.0, "b": 1.0, "c": 1.0, "gone": 1.0}
    slower, faster = check.compare_times(stored, {"a": 1.29, "b": 1.31, "c": 0.7, "new": 1.0})
    assert [line.partition(":")[0] for line in slower] == ["b", "gone", "new"]
    assert [line.partition(":")[0] for line in faster] == ["c"]


def test_times_are_ratios_to_a_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds: Iterator[float] = iter([9.0, *[1.0, 1.0], *[2.0, 2.0], *[10.0, 10.0], *[1.0, 1.0], *[1.0, 1.0]])
    monkeypatch.setattr(check, "calibrate", lambda: next(speeds))
    took = iter([99.0, 3.0, 6.0, 30.0, 3.0, 12.0])
    # A machine that is twice or ten times as slow in one pass is so in both.
    assert check.measure_times({"a": lambda: next(took)}) == {"a": 3.0}


def test_the_exit_status_says_whether_it_is_as_stored(capsys: pytest.CaptureFixture[str]) -> None:
    stored = {"counted": {"a": {"x": 1}}, "times": {"t": 1.0}, "python": "3.11.7"}
    assert check.check(stored, stored) == 0
    assert check.check(stored, {**stored, "counted": {"a": {"x": 2}}}) == 1
    assert check.check(stored, {**stored, "times": {"t": 2.0}, "python": "3.12.1"}) == 1
    said = capsys.readouterr().out
    assert "a: x is 2, stored is 1" in said
    assert "of Python 3.11.7, this is 3.12.1" in said


def test_the_stored_baseline_is_of_what_is_measured_now(model: Path) -> None:
    stored = json.loads(check.BASELINE.read_text())
    assert set(stored["counted"]) == set(counted.PARTS)
    assert set(stored["times"]) == set(check.timed_items(model))


def test_frames_come_back_as_they_were() -> None:
    for case in wire.cases(branches=4, prompt_tokens=10):
        decoded = case.decode(case.encode())
        assert isinstance(decoded, list)
        assert len(decoded) == case.num_messages
