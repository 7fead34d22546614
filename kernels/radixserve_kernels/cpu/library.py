"""The compiled library's functions, with their C signatures."""

from __future__ import annotations

import ctypes
import logging
from typing import TYPE_CHECKING, Any

from radixserve_kernels.cpu.build import CompilationError, KernelBuildError, build
from radixserve_kernels.cpu.openmp import find_openmp
from radixserve_kernels.cpu.processor import supported_isas

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve_kernels.cpu.processor import Isa

logger = logging.getLogger(__name__)

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_float
#: Result and arguments of every function that the backend calls.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rs_use_openmp": (None, [_P, _P, _P, _P]),
    "rs_plan_create": (_P, [_I, _I, _I, _F, _I, _I, _I]),
    "rs_plan_destroy": (None, [_P]),
    "rs_plan_build": (_I, [_P, _I, _I, _P, _P, _P, _P, _P, _I, _L]),
    "rs_plan_keys": (_L, [_P]),
    "rs_attend": (None, [_P, _I, _I, _P, _P, _P, _L, _P, _L, _P, _L, _P]),
    "rs_workspace_create": (_P, []),
    "rs_workspace_destroy": (None, [_P]),
    "rs_linear_create": (_P, [_I]),
    "rs_linear_destroy": (None, [_P]),
    "rs_linear_add": (_I, [_P, _I, _I, _P, _L, _P]),
    "rs_linear_apply": (_I, [_P, _P, _I, _P, _L, _I, _I, _P, _L, _I]),
    "rs_stack_create": (_P, [_I, _I, _F, _P, _P, _L]),
    "rs_stack_destroy": (None, [_P]),
    "rs_stack_add": (_I, [_P, _P, _P, _P, _P, _P, _P, _P, _P]),
    "rs_stack_run": (_I, [_P, _P, _I, _P, _L, _P, _P, _P, _L, _P]),
    "rs_rms_norm": (None, [_I, _I, _P, _L, _L, _P, _P, _L, _L, _I, _F, _I]),
    "rs_add_rms_norm": (None, [_I, _I, _P, _P, _P, _L, _I, _F, _I]),
    "rs_rotary": (_I, [_I, _P, _L, _I, _P, _L, _I, _I, _P, _L, _P, _L, _I]),
    "rs_silu_mul": (None, [_I, _P, _L, _P, _L, _I, _I]),
    "rs_copy_pages": (None, [_P, _L, _L, _L, _L, _L, _P, _L, _I]),
    "rs_prefer_huge_pages": (None, [_P, _L]),
}


def load_library(cache_dir: Path, isa: Isa | None = None) -> tuple[ctypes.CDLL, Isa]:
    """Load the best variant that the processor runs and the compiler knows, or exactly `isa`.

    Raises KernelBuildError where none can be had.
    """
    supported = supported_isas()
    if isa is not None and isa not in supported:
        raise KernelBuildError(f"this processor has no {isa}; it has {', '.join(supported) or 'none of the variants'}")
    if not supported:
        raise KernelBuildError("the compiled kernels need an x86-64 processor with AVX2 and FMA")
    wanted: list[Isa] = [isa] if isa is not None else supported
    for candidate, fallback in zip(wanted, [*wanted[1:], None], strict=True):
        try:
            return _load(str(build(candidate, cache_dir))), candidate
        except CompilationError as error:
            if fallback is None:
                raise
            logger.info("no %s kernels, trying %s: %s", candidate, fallback, error)
    raise AssertionError("the last candidate returns or raises")


def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    openmp = find_openmp()
    if openmp is None:
        logger.warning("no OpenMP runtime in this process: the CPU kernels run on one thread")
    else:
        library.rs_use_openmp(openmp.parallel, openmp.thread_num, openmp.num_threads, openmp.barrier)
    return library
