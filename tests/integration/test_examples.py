"""Every example of the gallery on the real model, and what must be true of it whatever the model writes."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import radixserve as rs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = [pytest.mark.model, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[rs.Engine]:
    with rs.Engine(str(smollm2_path), kv_tokens=8192, log_level="warning") as running:
        yield running


@pytest.fixture(autouse=True)
def _empty_cache(engine: rs.Engine) -> None:
    """What an example finds in the cache is its own."""
    engine.client.query("reset_cache").result(10)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks annotations up there
    spec.loader.exec_module(module)
    return module


def said(capsys: pytest.CaptureFixture[str], head: str) -> list[str]:
    """What the lines that begin with `head` go on with."""
    return [line.removeprefix(head).strip() for line in capsys.readouterr().out.splitlines() if line.startswith(head)]


def gens(branch: rs.TraceBranch) -> list[rs.TraceStep]:
    return [step for step in branch.steps if step.kind == "gen"]


def cached(steps: list[rs.TraceStep]) -> list[int]:
    return [0 if step.usage is None else step.usage.cached_tokens for step in steps]


def test_each_has_a_test() -> None:
    tested = {name.removeprefix("test_").removesuffix("_example") for name in globals() if name.endswith("_example")}
    assert {path.stem for path in FOLDER.glob("*.py")} == tested


def test_demo_example(engine: rs.Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RADIXSERVE_URL", engine.url)
    load("demo").main()
    out = capsys.readouterr().out
    assert "votes" in out
    assert "came from the cache" in out


def test_chat_example(engine: rs.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("chat")
    run: rs.Run[list[str]] = module.main(engine)
    assert len(run.value) == len(said(capsys, "assistant ")) == 3
    assert all(run.value)
    steps = gens(run.trace.root)
    # A turn finds all that came before its own message, what the model wrote included.
    for before, after in itertools.pairwise(steps):
        assert before.usage is not None
        assert after.usage is not None
        assert after.usage.cached_tokens >= before.usage.prompt_tokens + before.usage.output_tokens - 1


def test_self_consistency_example(engine: rs.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    run: rs.Run[Any] = load("self_consistency").main(engine)
    (fork,) = (step for step in run.trace.root.steps if step.kind == "fork")
    ended = [step for branch in fork.branches for step in gens(branch) if step.status == "done"]
    assert 1 <= run.value.total() <= len(ended)
    assert all(0 <= answer <= 99 for answer in run.value)
    assert run.value.most_common(1)[0][1] > len(fork.branches) // 2 or run.value.total() == len(fork.branches)
    # One branch computes the question, the others wait for it and compute their last token.
    assert sorted(cached(ended))[1] > 100
    assert said(capsys, "cancelled")


def test_tree_of_thought_example(engine: rs.Engine) -> None:
    run: rs.Run[str] = load("tree_of_thought").main(engine)
    assert run.value.startswith("Answer: ")
    (fork,) = (step for step in run.trace.root.steps if step.kind == "fork")
    assert len(fork.branches) == 3
    inner = [step for branch in fork.branches for step in branch.steps if step.kind == "fork"]
    assert len(inner) == 2  # only the best two went on
    marks = [step for branch in fork.branches for step in branch.steps if step.kind == "score"]
    assert all(len(mark.scores) == 2 for mark in marks)
    assert run.usage.cached_tokens > run.usage.computed_tokens


def test_react_example(engine: rs.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    run: rs.Run[str] = load("react").main(engine)
    assert 0 < len(run.value) <= 60
    steps = run.trace.root.steps
    assert len(said(capsys, "call")) == run.usage.tool_calls == len(gens(run.trace.root)) <= 3
    assert len([step for step in steps if step.kind == "tools"]) == 1
    assert {step.status for step in steps if step.kind == "lease"} == {"done"}
    if run.usage.tool_calls > 1:
        assert cached(gens(run.trace.root))[1] > 100


def test_map_reduce_example(engine: rs.Engine, capsys: pytest.CaptureFixture[str]) -> None:
    run: rs.Run[str] = load("map_reduce").main(engine)
    assert run.value
    (fork,) = (step for step in run.trace.root.steps if step.kind == "fork")
    parts = [branch.steps[-1].text for branch in fork.branches]
    assert len(parts) == 6
    assert said(capsys, "summary")
    merge = next(step for step in run.trace.root.steps if step.kind == "user")
    assert merge.text.endswith("".join(f"\n- {part}" for part in parts))  # the server filled the values in
    assert run.usage.cached_tokens > 0


def test_classify_csv_example(engine: rs.Engine) -> None:
    runs: list[rs.Run[str]] = load("classify_csv").main(engine)
    assert len(runs) == 8
    assert {run.value for run in runs} <= {"positive", "negative"}
    saved = sorted(run.usage.cached_tokens for run in runs)
    assert saved[1] > 40  # the examples are computed once


def test_extract_json_example(engine: rs.Engine) -> None:
    module = load("extract_json")
    runs: list[rs.Run[Any]] = module.main(engine)
    assert len(runs) == 4
    assert all(isinstance(run.value, module.Order) for run in runs)
    assert all(1 <= run.value.item.count <= 20 for run in runs)
    assert sum(run.usage.cached_tokens for run in runs) > 0
