"""`record` and `Replay`: what is written, what is played back, and what a program is told that does something else."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import radixserve_lang as rs
from radixserve_lang import testing

if TYPE_CHECKING:
    from pathlib import Path


@rs.function
def chat(s: rs.State, turns: list[str], max_tokens: int = 16) -> list[str]:
    s += rs.system("Be brief.")
    answers: list[str] = []
    for turn in turns:
        s += rs.user(turn)
        answers.append(s.gen(max_tokens=max_tokens).value)
    return answers


@rs.function
def vote(s: rs.State, question: str, n: int) -> tuple[int, list[int]]:
    s += rs.user(question)
    order: list[int] = []
    with s.fork(n) as branches:
        for v in rs.as_completed([b.gen(json=int) for b in branches]):
            order.append(v.value)
            if Counter(order).most_common(1)[0][1] > n // 2:
                break
    s += rs.user("Sure?")
    sure = s.select(["yes", "no"])
    marks = s.score(["a", "b"]).value
    assert set(marks) == {"a", "b"}
    return order[-1] if sure.value == "yes" else 0, order


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.jsonl"


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def recorded(file: Path, *scripts: list[Any]) -> testing.record:
    return testing.record(file, testing.Scripted([answer for script in scripts for answer in script]))


def test_what_is_written(file: Path) -> None:
    with recorded(file, ["hello", "bye"]) as engine:
        chat.run(["hi", "and now?"], engine=engine, seed=7)
    head, program, first, second = rows(file)
    assert head["radixserve_recording"] == 1
    assert head["model"]["name"] == "scripted"
    assert program == {"program": 0, "seed": 7}
    assert (first["path"], first["index"], first["kind"], first["order"]) == ([], 0, "gen", 0)
    assert first["where"].endswith("in chat")
    assert first["context"] == [{"role": "system", "text": "Be brief."}, {"role": "user", "text": "hi"}]
    assert first["request"] == {"sampling": {"max_tokens": 16}}
    assert first["done"]["value"] == "hello"
    assert second["context"] == [{"role": "user", "text": "and now?"}]
    assert second["order"] == 1


def test_a_run_is_played_back_without_the_engine(file: Path) -> None:
    script = [5, 5, 4, 5, testing.RUNNING, "yes", {"a": -1.0, "b": -2.0}]
    with recorded(file, script) as engine:
        before = vote.run("q", 5, engine=engine)
    with testing.Replay(file) as engine:
        again = vote.run("q", 5, engine=engine)
    assert again.value == before.value == (5, [5, 5, 4, 5])
    assert again.usage == before.usage


def test_outcomes_come_in_the_order_in_which_they_came(file: Path) -> None:
    script = testing.Scripted(branches={(0,): [1], (1,): [2], (2,): [3]})
    with testing.record(file, script) as engine:

        @rs.function
        def race(s: rs.State) -> list[int]:
            s += rs.user("go")
            c, b, a = reversed(s.fork(3))  # the last is asked first
            return [v.value for v in rs.as_completed([c.gen(json=int), b.gen(json=int), a.gen(json=int)])]

        assert race.run(engine=engine).value == [3, 2, 1]
    written = rows(file)
    # As if the engine had taken its time over the first.
    for row in written:
        if "order" in row:
            row["order"] = {0: 2, 1: 0, 2: 1}[row["order"]]
    file.write_text("\n".join(map(json.dumps, written)))
    with testing.Replay(file) as engine:
        assert race.run(engine=engine).value == [2, 1, 3]


def test_failures_are_played_back(file: Path) -> None:
    @rs.function
    def careful(s: rs.State) -> str:
        s += rs.user("go")
        value = s.gen()
        later = s.gen()
        with pytest.raises(rs.OpSkippedError):
            _ = later.value
        try:
            return value.value
        except rs.OpError as error:
            return f"{error.code} {error.status} {error.partial}"

    with recorded(file, [testing.Failure("broken", code="boom", status=400, partial="so")]) as engine:
        assert careful.run(engine=engine).value == "boom 400 so"
    with testing.Replay(file) as engine:
        assert careful.run(engine=engine).value == "boom 400 so"


@pytest.mark.parametrize("seed", [None, 3])
def test_a_batch_is_played_back_in_any_order(file: Path, seed: int | None) -> None:
    inputs = [(["same start", f"question {i}"],) for i in range(12)]
    with testing.record(file, testing.Scripted(lambda text: f"<{text.splitlines()[-2]}>")) as engine:
        before = chat.run_batch(inputs, engine=engine, progress=False, concurrency=4, seed=seed)
    with testing.Replay(file) as engine:
        after = chat.run_batch(inputs[::-1], engine=engine, progress=False, concurrency=3)
    assert [run.value for run in after] == [run.value for run in before][::-1]


def test_two_runs_with_the_same_input_are_two_runs(file: Path) -> None:
    with recorded(file, ["a", "b"]) as engine:
        for _ in range(2):
            chat.run(["x"], engine=engine)
    engine = testing.Replay(file)
    assert [chat.run(["x"], engine=engine).value for _ in range(2)] == [["a"], ["b"]]
    with pytest.raises(rs.OpError, match="all of its runs have been played"):
        chat.run(["x"], engine=engine)
    with pytest.raises(testing.DivergedError):
        engine.close()
    engine.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"turns": ["hi", "and then?"]},
            r"part 1 of what was appended before it was 'user: and now\?' and is 'user: and then\?'",
        ),
        ({"max_tokens": 8}, r'sampling was .*"max_tokens": 16.* and is .*"max_tokens": 8'),
        ({"turns": ["hi", "and now?", "more"]}, "it has no such op on this branch"),
    ],
)
def test_a_program_that_does_something_else_is_told(file: Path, change: dict[str, Any], message: str) -> None:
    arguments = {"turns": ["hi", "and now?"]}
    with recorded(file, ["hello", "bye"]) as engine:
        chat.run(engine=engine, **arguments)
    with (
        pytest.raises(testing.DivergedError, match=message),
        testing.Replay(file) as engine,
        pytest.raises(rs.OpError, match=message) as caught,
    ):
        chat.run(engine=engine, **(arguments | change))
    assert caught.value.code == "diverged"
    assert "test_replay.py" in str(caught.value)


def test_a_program_that_ends_too_early_fails_the_test(file: Path) -> None:
    with recorded(file, ["hello", "bye"], ["hello", "what?"]) as engine:
        chat.run(["hi", "and now?"], engine=engine, seed=7)
        chat.run(["hi", "and then?"], engine=engine, seed=8)
    replay = testing.Replay(file)
    assert chat.run(["hi"], engine=replay, seed=7).value == ["hello"]
    with pytest.raises(testing.DivergedError, match=r"ended without the gen at .*test_replay\.py:\d+ in chat that its run in"):
        replay.close()


def test_another_kind_of_op_and_other_messages(file: Path) -> None:
    @rs.function
    def one(s: rs.State, kind: str) -> str:
        s += rs.user("go")
        if kind == "more":
            s += rs.user("on")
        return s.gen().value if kind != "select" else s.select(["a"]).value

    with recorded(file, ["x"]) as engine:
        one.run("gen", engine=engine)
    for kind, message in (("select", "there it was a gen"), ("more", "1 parts were appended before it, now 2")):
        engine = testing.Replay(file)
        with pytest.raises(rs.OpError, match=message):
            one.run(kind, engine=engine)
        with pytest.raises(testing.DivergedError, match=message):
            engine.close()


def test_how_text_is_sliced_makes_no_difference(file: Path) -> None:
    @rs.function
    def sliced(s: rs.State, pieces: list[str]) -> str:
        for piece in pieces:
            s += piece
        return s.gen().value

    with recorded(file, ["x"]) as engine:
        sliced.run(["ab", "c"], engine=engine)
    with testing.Replay(file) as engine:
        assert sliced.run(["a", "bc"], engine=engine).value == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no recording"),
        ("nonsense", "no recording"),
        ('{"some": "json"}', "no recording"),
        ('{"radixserve_recording": 99, "model": {}}', "version 99"),
        ('{"radixserve_recording": 1, "model": {}}', "damaged"),
    ],
)
def test_files_that_are_no_recordings(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(testing.RecordingError, match=message):
        testing.Replay(file)


def test_a_recording_ends_with_what_still_ran(file: Path) -> None:
    @rs.function
    def leave(s: rs.State) -> str:
        s += rs.user("go")
        with s.fork(2) as branches:
            values = [b.gen() for b in branches]
            return values[0].value

    with recorded(file, ["quick", testing.RUNNING]) as engine:
        leave.run(engine=engine)
    kinds = [("done" in row, row["path"]) for row in rows(file) if "path" in row]
    assert sorted(kinds) == [(True, [0])] or sorted(kinds) == [(False, [1]), (True, [0])]
    with testing.Replay(file) as engine:
        assert leave.run(engine=engine).value == "quick"
