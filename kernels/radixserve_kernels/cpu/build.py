"""Compiles the kernels once and keeps them: one shared library for each instruction set, compiler and state of the sources.

Two processes that start together compile once (a file lock); a library appears only whole (written aside, then renamed), and
one that was damaged later fails its checksum and is built again.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Generator

    from radixserve_kernels.cpu.processor import Isa

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "csrc"
_COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    # A product and a sum may only fuse where the source says so: the same row must round the same in every tile.
    "-ffp-contract=off",
)
_ISA_FLAGS: dict[Isa, tuple[str, ...]] = {
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
    "avx512_bf16": (
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512bf16",
        "-mavx512vnni",
    ),
}


class KernelBuildError(RuntimeError):
    """The kernels can't be compiled on this machine; the message says why and what would help."""


class CompilationError(KernelBuildError):
    """The compiler refused the sources; one that doesn't know the newest instructions may still compile another variant."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler and what it says about itself."""

    path: str
    version: str


def default_cache_dir() -> Path:
    """Where compiled kernels are kept unless the caller names a folder."""
    return Path(platformdirs.user_cache_dir("radixserve")) / "kernels"


def find_compiler() -> Compiler:
    """`$CXX` (the toolchain's own convention), else g++, clang++ or c++ on the path.

    Raises KernelBuildError where there is none.
    """
    wanted = os.environ.get("CXX", "")
    for name in (wanted,) if wanted else ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return Compiler(path, answer.stdout.splitlines()[0] if answer.stdout else "")
    missing = f"the compiler {wanted!r} that CXX names" if wanted else "a C++ compiler (g++ or clang++)"
    raise KernelBuildError(f"{missing} was not found; install one to get the compiled kernels")


def build(isa: Isa, cache_dir: Path) -> Path:
    """The shared library for one instruction set, compiled if the cache lacks it or holds a damaged one.

    Raises KernelBuildError where there is no compiler, it fails, or the folder can't be written.
    """
    compiler = find_compiler()
    flags = (*_COMMON_FLAGS, *_ISA_FLAGS[isa])
    library = cache_dir / f"radixserve-{isa}-{_cache_key(compiler, flags)}.so"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(library.with_suffix(".lock")):
            if not _is_whole(library):
                _compile(compiler, flags, library)
    except OSError as error:
        raise KernelBuildError(f"the kernel cache {cache_dir} can't be used: {error}") from error
    return library


def _cache_key(compiler: Compiler, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in (compiler.path, compiler.version, *flags):
        digest.update(part.encode() + b"\0")
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file lets go of the lock


def _checksum_path(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _is_whole(library: Path) -> bool:
    # Checked before loading: the dynamic linker may crash on a truncated file instead of refusing it.
    try:
        return hashlib.sha256(library.read_bytes()).hexdigest() == _checksum_path(library).read_text().strip()
    except OSError:
        return False


def _compile(compiler: Compiler, flags: tuple[str, ...], library: Path) -> None:
    began = time.monotonic()
    sources = sorted(str(path) for path in _SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as folder:
        made = Path(folder) / "kernels.so"
        command = [compiler.path, *flags, *sources, "-o", str(made)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        except subprocess.TimeoutExpired as error:
            raise KernelBuildError(f"{compiler.path} did not finish within {error.timeout:.0f} s") from error
        if answer.returncode != 0:
            raise CompilationError(f"{compiler.path} could not compile the kernels:\n{answer.stderr.strip()[-2000:]}")
        _checksum_path(library).write_text(hashlib.sha256(made.read_bytes()).hexdigest())
        made.rename(library)
    logger.info("compiled the CPU kernels in %.1f s: %s", time.monotonic() - began, library)
