from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from radixserve.bench import measure as measuring
from radixserve.bench.catalog import WORKLOADS
from radixserve.bench.shape import ALWAYS, Shape
from radixserve.cli import main
from tests.bench.fakes import FakeOpenAI, openai_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

ROOT = Path(__file__).resolve().parents[2]
FAST = ("--no-warmup", "--requests", "4", "--output-tokens", "3")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RADIXSERVE_BENCH_KEYS", "RADIXSERVE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake() -> FakeOpenAI:
    return FakeOpenAI()


@pytest.fixture
def url(fake: FakeOpenAI) -> Iterator[str]:
    with openai_server(fake) as address:
        yield address


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", *arguments])


def test_a_sweep_as_table_json_and_pictures(url: str, tmp_path: Path) -> None:
    file, folder = tmp_path / "out.json", tmp_path / "plots"
    result = bench(
        "batch", "--url", url, *FAST, "--concurrency", "1,2", "--repeats", "3", "--json", str(file), "--plot", str(folder)
    )
    assert result.exit_code == 0, result.output
    assert "batch" in result.stdout
    written = json.loads(file.read_text())
    assert written["schema"] == "radixserve.bench/1"
    assert (len(written["rows"]), len(written["medians"])) == (6, 2)
    assert [row["concurrency"] for row in written["medians"]] == [1, 2]
    for row in written["medians"]:
        assert row["repeats"] == 3
        speeds = sorted(one["tokens_per_s"] for one in written["rows"] if one["concurrency"] == row["concurrency"])
        assert row["tokens_per_s"] == speeds[1]
    names = {path.name for path in folder.iterdir()}
    assert {"ttft.png", "itl.svg", "throughput.png", "hit_rate.png", "goodput.svg"} <= names


def test_errors_are_shown_and_are_the_exit_status(fake: FakeOpenAI, url: str) -> None:
    fake.fails_on = "water"
    result = bench("batch", "--url", url, "--no-warmup", "--requests", "4", "--output-tokens", "3", "--seed", "1")
    assert result.exit_code == 1
    assert "requests failed, the most with: 503: overloaded" in result.stdout


def test_outputs_of_another_length_are_pointed_out(fake: FakeOpenAI, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeOpenAI, "_length", staticmethod(lambda body: 2))
    result = bench("batch", "--url", url, *FAST)
    assert result.exit_code == 0
    assert "4 of 4 outputs do not have the length" in result.stdout


def test_a_client_that_works_too_hard_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CLIENT_CPU_LIMIT", 0.0)
    assert "may be the bottleneck" in bench("batch", "--url", url, *FAST).stdout


def test_texts_are_new_unless_a_seed_is_given(fake: FakeOpenAI, url: str) -> None:
    def texts(*seed: str) -> set[str]:
        fake.bodies.clear()
        assert bench("batch", "--url", url, *FAST, *seed).exit_code == 0
        return {body["messages"][1]["content"] for body in fake.bodies if len(body["messages"]) > 1}

    assert texts("--seed", "a") == texts("--seed", "a")
    assert not texts() & texts()


def test_keys_come_from_the_environment(fake: FakeOpenAI, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.key = "secret"
    assert "401" in bench("batch", "--url", url, *FAST).stderr
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert bench("batch", "--url", url, *FAST).exit_code == 0
    monkeypatch.setenv("RADIXSERVE_BENCH_KEYS", "wrong, secret")
    assert "401" in bench("batch", "--url", url, *FAST).stderr


def test_pictures_need_the_extra_and_say_so_before_anything_is_measured(
    fake: FakeOpenAI, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = bench("batch", "--url", url, *FAST, "--plot", str(tmp_path / "p"))
    assert result.exit_code == 1
    assert "radixserve[plots]" in result.stderr
    assert not fake.bodies


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing", "--url", "http://x"], "there is no workload 'nothing'"),
        (["batch"], "--url http://... or --socket"),
        (["batch", "--url", "http://x", "--socket", "ipc://y"], "--url http://... or --socket"),
        (["batch", "--socket", "ipc://y", "--model", "m"], "--model and --extra-body are for --url"),
        (["trace", "--url", "http://x"], "needs --trace FILE"),
        (["w2", "--url", "http://x", "--requests", "3"], "w2 has no requests to set"),
        (["batch", "--url", "http://x", "--concurrency", "1,a"], "not a list of numbers"),
        (["batch", "--url", "http://x", "--concurrency", "1,0"], "not above 0"),
        (["batch", "--url", "http://127.0.0.1:9"], "no server answers"),
        (["batch", "--url", "http://127.0.0.1:9", "--requests", "-1"], "requests must be above 0"),
    ],
)
def test_what_can_not_be_done_is_said(arguments: list[str], says: str) -> None:
    result = bench(*arguments)
    assert result.exit_code != 0
    assert says in result.stderr.replace("\n", " ")


def test_extra_bodies_must_be_objects(url: str) -> None:
    for body in ("[]", "{"):
        assert bench("batch", "--url", url, "--extra-body", body).exit_code == 1


def test_help_names_every_workload() -> None:
    shown = bench("--help").output
    assert all(name in shown for name in WORKLOADS)


def test_rows_are_plain_json(url: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert bench("json", "tree", "--url", url, "--no-warmup", "--requests", "2", "--json", str(file)).exit_code == 0
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    assert [(row["workload"], row["part"]) for row in rows] == [("json", "constrained"), ("json", "plain"), ("tree", "")]
    assert rows[0]["extras"]["valid"] == 0


def test_every_workload_and_every_size_is_documented() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for workload in WORKLOADS.values():
        if workload.settable:
            assert f"| `{workload.name}` |" in text
    sizes = {size for workload in WORKLOADS.values() for size in workload.settable | ALWAYS}
    assert not [size for size in sizes if f"--{size.replace('_', '-')}" not in text]
    assert set(Shape.__dataclass_fields__) == sizes  # or a flag could be set nowhere
