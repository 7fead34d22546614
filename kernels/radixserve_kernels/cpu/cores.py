"""One core for each computing thread.

Threads that meet at barriers and spin there look busy to the kernel, which may then leave two of them on one core while another process has
the other: every barrier waits for the end of a time slice, and a step takes ten or twenty times as long. Held to a core each
they lose no more than what that process takes.
"""

from __future__ import annotations

import ctypes
import os

from radixserve_kernels.cpu.openmp import find_openmp

_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def hold_cores(threads: int) -> list[int]:
    """Give each of the calling thread's OpenMP team, itself included, a core of its own; the cores by thread number.

    Only where they are as many as the cores that this process may use, since else another one's threads may well want the same; an
    empty list where nothing was done. Threads that the caller starts afterwards inherit its core.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    openmp = find_openmp()
    if threads < 2 or threads != len(cores) or openmp is None:
        return []
    number = ctypes.CFUNCTYPE(ctypes.c_int)(openmp.thread_num)
    parallel = ctypes.CFUNCTYPE(None, _REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(openmp.parallel)
    held = [-1] * threads

    def hold(_: int | None) -> None:
        thread = number()
        try:
            os.sched_setaffinity(0, {cores[thread]})
        except OSError:
            return  # a core that went offline, or a system that doesn't allow it: as it was
        held[thread] = cores[thread]

    parallel(_REGION(hold), None, threads, 0)
    return held
