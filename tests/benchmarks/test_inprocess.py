"""The runtime driven without sockets: what the workload needs at least, and what the rungs of the ladder compute."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ladder
from benchmarks.inprocess.agents import AgentWork, Sizes, Turn, make_agents
from benchmarks.inprocess.bound import Rates, Work, least_work, typical_context
from radixserve_kernels.cpu.backend import CpuBackend
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Sizes(agents=4, turns=3, scale=1 / 128, scale_output=1 / 40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model"))


def test_agents_share_their_preamble_and_nothing_else() -> None:
    agents = make_agents(SMALL, 512)
    assert agents == make_agents(SMALL, 512)
    assert len(agents) == 4
    assert len({agent.preamble for agent in agents}) == 1
    assert len({agent.turns[0].new_ids for agent in agents}) == 4
    assert all(16 <= one < 512 for agent in agents for turn in agent.turns for one in turn.new_ids)


def test_agents_end_where_the_context_does() -> None:
    sizes = Sizes(agents=30, turns=50, scale=1 / 64, scale_output=1 / 64, max_context=400)
    for agent in make_agents(sizes, 512):
        assert len(agent.preamble) + sum(len(turn.new_ids) + turn.num_output for turn in agent.turns) <= 400
    with pytest.raises(ValueError, match="no turn fits"):
        make_agents(Sizes(max_context=10), 512)


def test_recorded_lengths(tmp_path: Path) -> None:
    def request(prompt: int, out: int) -> dict[str, Any]:
        return {"type": "n", "in": prompt, "out": out, "blocks": [[1, prompt // 64]], "think_time": 1.0}

    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps({"requests": [request(20_000, 320), request(21_600, 160)]}) + "\n")
    [agent] = make_agents(Sizes(agents=1, scale=1 / 64, scale_output=1 / 32), 512, file)
    assert len(agent.preamble) == round(17_200 / 64)
    assert [(len(turn.new_ids), turn.num_output) for turn in agent.turns] == [(round(2_800 / 64), 10), (20, 5)]


def turns(*lengths: tuple[int, int]) -> tuple[Turn, ...]:
    return tuple(Turn(tuple(range(16, 16 + new)), output) for new, output in lengths)


def test_the_least_work_of_two_agents() -> None:
    preamble = tuple(range(100, 110))
    work = least_work([AgentWork(preamble, turns((5, 3), (4, 2))), AgentWork(preamble, turns((6, 2)))], slots=2)
    # The preamble once, all new tokens, and one token that was written at the end of a turn before another.
    assert work.prompt_tokens == 10 + 5 + 4 + 6 + 1
    assert work.steps == {2: 1, 1: 2}


@given(outputs=st.lists(st.integers(1, 30), min_size=1, max_size=8), slots=st.integers(1, 4))
def test_the_least_steps_can_not_be_undercut(outputs: list[int], slots: int) -> None:
    agents = [AgentWork((1,), turns((1, output))) for output in outputs]
    work = least_work(agents, slots)
    left = [output - 1 for output in outputs]
    assert sum(size * count for size, count in work.steps.items()) == sum(left)
    assert work.num_steps >= max(*left, -(-sum(left) // slots), 0)
    # Longest first is optimal for tasks that can be broken off at any step.
    assert work.num_steps == max(*left, -(-sum(left) // slots), 0)


def test_the_typical_context_is_over_all_turns() -> None:
    agents = [AgentWork(tuple(range(10)), turns((5, 3), (4, 2))), AgentWork(tuple(range(10)), turns((6, 2)))]
    assert typical_context(agents) == (15 + 22 + 16) // 3


def test_times_between_measured_sizes() -> None:
    rates = Rates(100.0, {1: 0.01, 4: 0.04})
    assert rates.decode_s(2) == pytest.approx(0.02)
    assert rates.decode_s(9) == 0.04
    assert rates.seconds(Work(200, {1: 3, 4: 1})) == pytest.approx(2.0 + 0.03 + 0.04)


def test_rungs_compute_what_they_should(model: str) -> None:
    agents = make_agents(SMALL, 512)
    work = least_work(agents, 2)
    settings = {"dtype": "float32", "backend": "reference", "kv_tokens": 4096, "num_threads": 1}
    rows = {
        rung.name: ladder.climb(rung, model, agents, work, 2, 512, **settings)
        for rung in ladder.rungs(2, delay_ms=1.0)
        if not rung.cascade
    }
    outputs = sum(turn.num_output for agent in agents for turn in agent.turns)
    assert {row["num_output_tokens"] for row in rows.values()} == {outputs}
    assert rows["+ radix cache"]["num_prompt_tokens_computed"] == work.prompt_tokens
    whole = sum(
        len(agent.preamble)
        + sum(len(one.new_ids) + one.num_output for one in agent.turns[:turn])
        + len(agent.turns[turn].new_ids)
        for agent in agents
        for turn in range(len(agent.turns))
    )
    for name in ("one at a time", "static", "dynamic", "continuous", "+ chunked prefill"):
        assert rows[name]["num_prompt_tokens_computed"] == whole
    assert rows["one at a time"]["num_forward_passes"] == outputs
    assert rows["continuous"]["num_forward_passes"] < rows["static"]["num_forward_passes"]
    for row in rows.values():
        assert 0 <= row["waste"] < 1
        assert row["share_of_allowed"] is None or row["share_of_allowed"] > 0
    lines = ladder.summary(list(rows.values()))
    assert lines[0].startswith("+ radix cache / static")
    assert ladder.show(list(rows.values())).row_count == len(rows)


def test_what_a_build_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = ladder.Rung("x", {"no_such_setting": 1})
    assert "no setting no_such_setting" in ladder.why_not(lacking)
    assert ladder.why_not(ladder.rungs(4)[0]) == ""
    monkeypatch.setattr(ladder, "_knows_cascade", lambda: False)
    assert "no cascade" in ladder.why_not(ladder.Rung("x", {}, cascade=True))


def test_cascade_is_off_on_the_lower_rungs_only() -> None:
    if not ladder._knows_cascade():
        pytest.skip("this build has no cascade")
    before = dict(CpuBackend.__init__.__kwdefaults__)
    with ladder._cascade(False):
        assert CpuBackend.__init__.__kwdefaults__["cascade"] is False
    assert before == CpuBackend.__init__.__kwdefaults__
