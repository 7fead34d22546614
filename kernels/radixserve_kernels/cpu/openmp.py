"""Finds the OpenMP runtime that PyTorch has loaded, so that the kernels share its threads.

A second runtime would bring a second pool of spinning threads, and two pools on the same cores slow each other about tenfold.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

_RUNTIME = re.compile(r"lib(gomp|iomp5|omp)[-.\w]*\.so[.\d]*$")


@dataclass(frozen=True, slots=True)
class OpenMpEntryPoints:
    """Addresses in a loaded runtime."""

    path: str
    parallel: int
    thread_num: int
    num_threads: int
    barrier: int


def loaded_runtimes(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Paths of the OpenMP runtimes in this process, PyTorch's own first."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if _RUNTIME.search(line)}
    return sorted(paths, key=lambda path: ("/torch/" not in path, path))


def find_openmp() -> OpenMpEntryPoints | None:
    """The runtime to use: the one already loaded, else the system's; None where there is neither."""
    for path in [*loaded_runtimes(), "libgomp.so.1"]:
        try:
            library = ctypes.CDLL(path)
            names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier")
            addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
        except (OSError, AttributeError):
            continue
        return OpenMpEntryPoints(path, *addresses)
    return None
