"""Every backend under one roof: a test that takes `make_backend` runs on each of them that this machine has."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from radixserve_kernels.cpu.backend import CpuBackend
from radixserve_kernels.cpu.build import KernelBuildError, find_compiler
from radixserve_kernels.cpu.processor import supported_isas
from radixserve_kernels.flashinfer import FlashInferBackend
from radixserve_kernels.reference import ReferenceBackend
from radixserve_kernels.torch_backend import TorchBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_kernels.interface import AttentionSpec, Backend


def load_helper(name):
    """A helper module beside the tests (they are no package)."""
    source = importlib.util.spec_from_file_location(f"radixserve_kernel_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


def has_compiler():
    try:
        find_compiler()
    except KernelBuildError:
        return False
    return True


@dataclass(frozen=True)
class Kind:
    """A backend and the dtype of KV and activations it is tested with."""

    make: Callable[[AttentionSpec], Backend]
    dtype: torch.dtype
    tolerance: float


KINDS = ["torch", "flashinfer", "cpu-avx2", "cpu-avx512", "cpu-avx512_bf16"]


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def batches():
    return load_helper("batches")


@pytest.fixture(scope="session")
def emulator():
    return load_helper("flashinfer_emulator")


def cpu_or_skip(isa):
    if isa not in supported_isas():
        pytest.skip(f"this processor has no {isa}")
    if not has_compiler():
        pytest.skip("no C++ compiler")


@pytest.fixture(scope="session", params=[f"{kind}-{dtype}" for kind in KINDS for dtype in ("float32", "bfloat16")])
def kind(request, kernel_cache, emulator):
    name, _, dtype_name = request.param.rpartition("-")
    dtype = getattr(torch, dtype_name)
    tolerance = 3e-5 if dtype is torch.float32 else 3e-2
    if name == "torch":
        return Kind(TorchBackend, dtype, tolerance)
    if name == "flashinfer":
        return Kind(lambda spec: FlashInferBackend(spec, "cpu", module=emulator), dtype, tolerance)
    isa = name.removeprefix("cpu-")
    cpu_or_skip(isa)
    return Kind(lambda spec: CpuBackend(spec, 2, kernel_cache, isa=isa), dtype, tolerance)


@pytest.fixture
def reference():
    return ReferenceBackend


@pytest.fixture(scope="session")
def make_cpu(kernel_cache):
    """The best compiled backend here."""
    isas = supported_isas()
    if not isas:
        pytest.skip("no compiled kernels for this processor")
    cpu_or_skip(isas[0])
    return lambda spec, threads=2, isa=None, **options: CpuBackend(spec, threads, kernel_cache, isa=isa, **options)
