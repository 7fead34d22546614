"""Chooses and loads a backend. Each is imported only when it is wanted."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_kernels.interface import AttentionSpec, Backend

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "reference", "torch", "cpu", "flashinfer")


class BackendUnavailableError(RuntimeError):
    """The backend that was asked for can't run here; the message says why and what would help."""


def load_backend(
    name: str, spec: AttentionSpec, *, device: str = "cpu", num_threads: int = 0, cache_dir: str | Path | None = None
) -> Backend:
    """A backend for one model on one device.

    `auto` is `flashinfer` on a CUDA device where it is installed, `cpu` on a processor whose kernels compile, and else `torch`, with
    one line in the log that says why. num_threads 0: PyTorch's own number. cache_dir empty or None: the user's cache directory.

    Raises ValueError for an unknown name, BackendUnavailableError where a backend named outright can't run here.
    """
    folder = Path(cache_dir) if cache_dir else None
    match name:
        case "auto":
            return _best(spec, device, num_threads, folder)
        case "reference":
            from radixserve_kernels.reference import ReferenceBackend

            return ReferenceBackend(spec, device)
        case "torch":
            return _torch(spec, device)
        case "cpu":
            return _cpu(spec, device, num_threads, folder)
        case "flashinfer":
            return _flashinfer(spec, device)
        case _:
            raise ValueError(f"unknown backend {name!r}: choose one of {', '.join(BACKENDS)}")


def _best(spec: AttentionSpec, device: str, num_threads: int, cache_dir: Path | None) -> Backend:
    try:
        return _cpu(spec, device, num_threads, cache_dir) if device == "cpu" else _flashinfer(spec, device)
    except BackendUnavailableError as error:
        logger.warning("attention runs on plain PyTorch, which is slower: %s", " ".join(str(error).split()))
        return _torch(spec, device)


def _torch(spec: AttentionSpec, device: str) -> Backend:
    from radixserve_kernels.torch_backend import TorchBackend

    return TorchBackend(spec, device)


def _cpu(spec: AttentionSpec, device: str, num_threads: int, cache_dir: Path | None) -> Backend:
    if device != "cpu":
        raise BackendUnavailableError(f"the cpu backend runs on the device `cpu`, not on {device}: choose `flashinfer` or `auto`")
    from radixserve_kernels.cpu.backend import CpuBackend, UnsupportedShapeError
    from radixserve_kernels.cpu.build import KernelBuildError

    try:
        return CpuBackend(spec, num_threads, cache_dir)
    except (KernelBuildError, UnsupportedShapeError) as error:
        raise BackendUnavailableError(str(error)) from error


def _flashinfer(spec: AttentionSpec, device: str) -> Backend:
    if not device.startswith("cuda"):
        raise BackendUnavailableError(f"flashinfer needs a CUDA device, not {device}: choose `cpu` or `auto`")
    if importlib.util.find_spec("flashinfer") is None:
        raise BackendUnavailableError("flashinfer is not installed: pip install 'radixserve[cuda]'")
    from radixserve_kernels.flashinfer import FlashInferBackend

    return FlashInferBackend(spec, device)
