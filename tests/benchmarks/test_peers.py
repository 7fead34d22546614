"""The table of peers: figures are compared by what each machine could do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import peers
from benchmarks.machine import Limits
from benchmarks.peers import Figures
from radixserve.bench.catalog import WORKLOADS
from tests.support.tiny_model import write_tiny_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def test_every_figure_is_of_a_workload_that_is_here() -> None:
    for rows in peers.PEERS.values():
        assert set(rows) <= set(peers.NAMES)
    assert set(peers.NAMES) <= set(WORKLOADS)
    documented = (peers.__doc__ or "").partition("docs/")[2]
    assert documented.startswith("benchmarks.md")


def test_ratios_are_to_the_limits_of_each_machine() -> None:
    half = Limits(15e9, 15e9, 183e9, 2)
    # Half the speed on half the machine is as good.
    assert peers._best("w2", peers.at_limits("w2", 327 / 2, half), "") == "1.00x (OpenVINO int8)"
    assert peers._best("p0", peers.at_limits("p0", 1104 / 2, half), "bf16") == "1.00x (vLLM CPU bf16)"
    assert peers._ttft("w3", 3.6, half) == "1.00 (vLLM CPU bf16)"
    assert peers._ttft("w1", 1.0, half) == "-"


def test_peers_of_the_same_run_are_compared_directly() -> None:
    shown = peers.table(
        {"w3": Figures(200.0, 1.0, 1.0, 0.5)}, peers.TABLE_LIMITS, {"other": {"w3": Figures(100.0, 2.0, 1.0, 2.0)}}
    )
    assert "100.0, 2.00x (0.50, 1.00, 0.25)" in [str(cell) for column in shown.columns for cell in column.cells]


def test_a_workload_that_the_table_does_not_have_is_compared_with_peers_of_the_run_alone() -> None:
    shown = peers.table({"poisson": Figures(1.5, 1.0)}, peers.TABLE_LIMITS, {"other": {"poisson": Figures(1.0, 2.0)}})
    cells = [str(cell) for column in shown.columns for cell in column.cells]
    assert "1.0, 1.50x (0.50, -, -)" in cells
    assert cells[-3:] == ["-", "-", "-"]


def test_settings_are_flags() -> None:
    assert peers._flag("kv_tokens=4096") == ["--kv-tokens", "4096"]
    assert peers._flag("prefix_cache=false") == ["--no-prefix-cache"]


@pytest.mark.slow
def test_a_server_is_started_measured_and_ended(tmp_path: Path) -> None:
    from rich.console import Console

    model = write_tiny_checkpoint(tmp_path / "tiny")
    with peers.served(str(model), ["threads=1", "dtype=float32"]) as (url, process):
        report = peers.run(url, ["p0", "w6"], 1, "seed", Console(quiet=True))
        assert peers.resident(process) > 0.01
    assert process.returncode is not None
    found = peers.figures(report)
    assert found["p0"].speed > 0
    assert {one.num_errors for one in found.values()} == {0}
    with pytest.raises(RuntimeError, match="ended with status"), peers.served(str(tmp_path / "nothing"), []):
        pass
