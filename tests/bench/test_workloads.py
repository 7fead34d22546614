from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from radixserve.bench.ask import BenchError
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.measure import Plan, measure
from radixserve.bench.shape import shape_of
from radixserve.bench.workloads.structured import SCHEMA, matches
from tests.bench.fakes import FakeTarget, count_words

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.bench.measure import Report


def run(target: FakeTarget, *names: str, **settings: Any) -> Report:
    plan = Plan([WORKLOADS[name] for name in names], warmup=False, **settings)
    return asyncio.run(measure(target, plan))


SMALL: dict[str, dict[str, Any]] = {
    "single": {"requests": 2, "output_tokens": 3},
    "batch": {"requests": 4, "output_tokens": 3},
    "shared-prefix": {"requests": 4, "output_tokens": 3},
    "agents": {"requests": 2, "turns": 3},
    "forks": {"branches": 3},
    "tree": {"requests": 2, "depth": 2, "branches": 3},
    "json": {"requests": 3},
    "tenants": {"requests": 9, "turns": 2},
    "poisson": {"requests": 3, "turns": 2, "rate": 1000.0, "think_s": 0.0},
}
#: How many requests each part of the above sends.
SENT = {
    "single": [2],
    "batch": [4],
    "shared-prefix": [4],
    "agents": [6],
    "forks": [6, 2],
    "tree": [24],
    "json": [3, 3],
    "tenants": [3 * 2 + 6],
    "poisson": [6],
}


@pytest.mark.parametrize("name", SENT)
def test_every_workload_sends_what_it_says(name: str) -> None:
    target = FakeTarget(num_keys=3) if name == "tenants" else FakeTarget()
    report = run(target, name, sizes=SMALL[name])
    assert [row.num_requests for row in report.rows] == SENT[name]
    assert sum(SENT[name]) == len(target.asked)
    assert not any(row.num_errors for row in report.rows)
    assert target.opened == target.closed
    json.dumps([row.as_dict() for row in report.rows])


#: (requests, tokens of the first prompt or None, tokens of an output, choices, at a time)
TABLE: dict[str, tuple[int, int | None, int, int, int]] = {
    "p0": (4, 1024, 1, 1, 1),
    "w1": (3, 128, 128, 1, 1),
    "w2": (16, 128, 128, 1, 16),
    "w3": (64, None, 32, 1, 16),
    "w4": (48, None, 48, 1, 8),
    "w5a": (16, 1024, 64, 1, 16),
    "w5b": (1, 1024, 64, 16, 1),
    "w6": (16, None, 96, 1, 8),
    "w6u": (16, None, 96, 1, 8),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_workloads_of_the_table_have_its_sizes(name: str) -> None:
    requests, prompt, output, choices, at_a_time = TABLE[name]
    target = FakeTarget(pause_s=0.001)
    run(target, name)
    assert len(target.asked) == requests
    assert target.most_running == at_a_time
    for messages, asked, _ in target.asked:
        assert (asked.max_tokens, asked.n) == (output, choices)
        if prompt is not None:
            assert count_words(messages) == prompt
        assert asked.exact is not name.startswith("w6")
        assert (asked.schema is not None) == (name == "w6")
    assert not WORKLOADS[name].settable


def test_shared_texts_have_their_lengths() -> None:
    target = FakeTarget()
    run(target, "w3", "w4")
    chats, agents = target.asked[:64], target.asked[64:]
    assert {len(messages[0][1].split()) for messages, _, _ in chats} == {1024}
    assert len({messages[0][1] for messages, _, _ in chats}) == 1
    assert {len(messages[1][1].split()) for messages, _, _ in chats} == {32}
    assert len({messages[1][1] for messages, _, _ in chats}) == 64
    assert {len(messages[0][1].split()) for messages, _, _ in agents} == {768}
    assert sorted(len(messages) for messages, _, _ in agents) == sorted(2 * turn for turn in range(1, 7) for _ in range(8))


def test_all_servers_see_the_same_texts_and_passes_see_new_ones() -> None:
    asked: list[list[Any]] = []
    for _ in range(2):
        target = FakeTarget()
        run(target, "batch", sizes={"requests": 3}, repeats=2, seed="s")
        asked.append([messages for messages, _, _ in target.asked])
    assert asked[0] == asked[1]
    assert len({messages[1][1] for messages in asked[0]}) == 6


def test_the_parts_of_forks_share_no_prompt_and_those_of_json_share_their_sentences() -> None:
    target = FakeTarget()
    run(target, "forks", sizes={"requests": 1, "branches": 2})
    assert len({messages[1][1] for messages, _, _ in target.asked}) == 2
    target = FakeTarget()
    run(target, "json", sizes={"requests": 4})
    constrained, plain = target.asked[:4], target.asked[4:]
    assert [messages[1] for messages, _, _ in constrained] == [messages[1] for messages, _, _ in plain]
    assert constrained[0][0][0] != plain[0][0][0]


def test_answers_that_break_their_schema_are_pointed_out() -> None:
    report = run(FakeTarget(), "w6", "w6u")
    assert [warning for warning in report.warnings if "schema" in warning] == [
        "w6: 16 of 16 answers do not match the schema that was asked for"
    ]


def test_a_sweep_has_a_row_for_each_point() -> None:
    target = FakeTarget(pause_s=0.001)
    report = run(target, "batch", concurrencies=[1, 4], sizes={"requests": 8}, repeats=2)
    assert [(row.concurrency, row.repeat) for row in report.rows] == [(1, 0), (1, 1), (4, 0), (4, 1)]
    assert target.most_running == 4


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("w2", {"concurrencies": [4]}),
        ("single", {"sizes": {"turns": 3}}),
        ("batch", {"rates": [1.0]}),
        ("poisson", {"concurrencies": [4]}),
        ("batch", {"sizes": {"requests": 0}}),
    ],
)
def test_sizes_that_mean_nothing_are_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(BenchError):
        run(FakeTarget(), name, **settings)


def test_the_service_level_can_be_set_everywhere() -> None:
    assert shape_of("w2", {}, frozenset(), {"ttft_limit_s": 9.0}).ttft_limit_s == 9.0


def test_turns_that_could_not_be_sent_are_errors_too() -> None:
    target = FakeTarget(fails=lambda messages: "too long" if len(messages) > 3 else "")
    report = run(target, "agents", sizes={"requests": 2, "turns": 4})
    [row] = report.rows
    assert (row.num_requests, row.num_errors) == (8, 6)
    assert row.errors == {"not sent: an earlier turn of its agent failed": 4, "too long": 2}
    assert row.goodput.share == 0.25
    assert any("6 of 8 requests failed" in warning for warning in report.warnings)


def test_keys_are_used_in_turn_and_reported() -> None:
    target = FakeTarget(num_keys=2)
    report = run(target, "tenants", sizes={"requests": 12, "turns": 2})
    assert {key for _, _, key in target.asked} == {0, 1}
    shares = report.rows[0].extras["by_tenant"]
    assert sum(share["requests"] for share in shares) == len(target.asked)
    assert not any("one key" in warning for warning in report.warnings)
    assert any("one key" in warning for warning in run(FakeTarget(), "tenants", sizes={"requests": 3}).warnings)


def test_objects_are_checked_field_by_field() -> None:
    good = {"name": "Ada", "age": 30, "city": "Bergen", "role": "admin", "active": True, "level": 3}
    assert matches(json.dumps(good))
    bad: list[Any] = [
        {**good, "age": True},
        {**good, "age": 121},
        {**good, "level": 0},
        {**good, "role": "king"},
        {**good, "name": "x" * 17},
        {**good, "city": None},
        {**good, "active": 1},
        {**good, "more": 1},
        {name: value for name, value in good.items() if name != "level"},
        [good],
    ]
    assert not any(matches(json.dumps(one)) for one in bad)
    assert not matches('{"name": "Ada"')
    import jsonschema

    for one in bad:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(one, SCHEMA)


def trace_file(tmp_path: Path) -> Path:
    def request(blocks: list[list[int]], prompt: int, pause: float = 0.0) -> dict[str, Any]:
        return {"type": "n", "in": prompt, "out": 64, "blocks": blocks, "think_time": pause}

    rows = [
        {"requests": [request([[1, 4]], 256), request([[1, 3], [7, 8]], 384, 500.0), request([[1, 99]], 99 * 64)]},
        {"requests": [request([[1, 2]], 128)]},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_trace_shares_what_its_ids_share(tmp_path: Path) -> None:
    target = FakeTarget(max_context=400)
    sizes = {"trace": trace_file(tmp_path), "requests": 5, "scale_length": 1 / 16, "max_think_s": 0.001, "concurrency": 1}
    report = run(target, "trace", sizes=sizes)
    first, second, other = ([word for word in messages[0][1].split()] for messages, _, _ in target.asked)
    # Blocks of 4 tokens after the first word; the last request of the first session is too long for the context.
    assert (len(first), len(second), len(other)) == (1 + 16, 1 + 20 + 4, 1 + 8)
    assert first[: 1 + 12] == second[: 1 + 12]
    assert first[13:] != second[13:17]
    assert other[1:5] != first[1:5]  # ids mean something within a session
    assert {asked.max_tokens for _, asked, _ in target.asked} == {4}
    assert report.rows[0].extras["block_tokens"] == 4


def test_a_trace_that_does_not_fit_says_so(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="scale-length"):
        run(FakeTarget(max_context=70), "trace", sizes={"trace": trace_file(tmp_path), "scale_length": 1.0})


def test_recorded_arrivals_come_by_the_clock(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,64,64\n2023-11-16 18:17:13.0,64,64\n2023-11-16 18:17:23.0,64,64\n"
    )
    target = FakeTarget(pause_s=0.05)
    report = run(target, "trace", sizes={"trace": file, "requests": 2, "scale_time": 1e-4, "concurrency": 1})
    assert len(target.asked) == 2
    assert target.most_running == 2  # the second did not wait for the first
    assert any("--concurrency has no meaning" in warning for warning in report.warnings)
    assert report.rows[0].num_errors == 0
