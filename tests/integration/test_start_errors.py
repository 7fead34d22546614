"""An engine that can't serve says so, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import radixserve as rs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_process_that_can_not_serve_ends_the_start(tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"this is no file of weights")
    with pytest.raises(rs.EngineStartError, match="the runtime process ended with status 78; its messages above say why"):
        rs.Engine(str(broken), dtype="float32", threads=1, kv_tokens=512, log_level="warning", start_timeout_s=120)
    said = capfd.readouterr().err
    assert "model.safetensors is cut off or damaged" in said
    assert "download it again" in said


@pytest.mark.slow
def test_a_pool_that_the_machine_has_no_memory_for(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(rs.EngineStartError, match="the runtime process ended with status 78; its messages above say why"):
        rs.Engine(str(tiny_model), threads=1, kv_tokens=16 * 10**9, log_level="warning", start_timeout_s=120)
    assert "start with --kv-tokens" in capfd.readouterr().err
