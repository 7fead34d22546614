"""Compiling, caching and choosing: what happens on first use, with a damaged cache, and without a compiler."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from radixserve_kernels.cpu import build as build_module
from radixserve_kernels.cpu.build import CompilationError, KernelBuildError, build
from radixserve_kernels.cpu.library import load_library
from radixserve_kernels.cpu.processor import supported_isas
from radixserve_kernels.registry import BackendUnavailableError, load_backend


@pytest.fixture
def isa(make_cpu):
    return supported_isas()[0]


def test_compiled_once_and_reused(isa, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    first = build(isa, tmp_path / "new" / "folder")
    stamp = first.stat().st_mtime_ns
    assert build(isa, tmp_path / "new" / "folder") == first
    assert first.stat().st_mtime_ns == stamp
    assert sum("compiled the CPU kernels" in record.message for record in caplog.records) == 1
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".lock", ".sha256", ".so"]


def test_a_damaged_library_is_built_again(isa, tmp_path):
    library = build(isa, tmp_path)
    whole = library.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", whole[:-1] + b"x"):
        library.write_bytes(damage)
        assert build(isa, tmp_path) == library
        assert len(library.read_bytes()) == len(whole)
    load_library(tmp_path, isa)


def test_two_that_start_together_compile_once(isa, tmp_path, monkeypatch):
    compiled = []
    real = build_module._compile
    monkeypatch.setattr(build_module, "_compile", lambda *arguments: (compiled.append(1), real(*arguments)))
    threads = [threading.Thread(target=build, args=(isa, tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


def test_other_sources_or_flags_get_another_name(isa, tmp_path, monkeypatch):
    compiler = build_module.find_compiler()
    key = build_module._cache_key(compiler, ("-O3",))
    assert key != build_module._cache_key(compiler, ("-O2",))
    assert key != build_module._cache_key(build_module.Compiler(compiler.path, "another version"), ("-O3",))
    (tmp_path / "other.cpp").write_text("int x;")
    monkeypatch.setattr(build_module, "_SOURCES", tmp_path)
    assert key != build_module._cache_key(compiler, ("-O3",))


def test_no_compiler_means_the_torch_path_and_one_line(monkeypatch, tmp_path, caplog, batches):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    spec = batches.spec()
    with caplog.at_level(logging.INFO):
        backend = load_backend("auto", spec, cache_dir=tmp_path)
    assert backend.name == "torch"
    assert len(caplog.records) == 1
    assert "plain PyTorch" in caplog.text
    with pytest.raises(BackendUnavailableError):
        load_backend("cpu", spec, cache_dir=tmp_path)


def test_a_compiler_named_in_vain(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelBuildError, match="no-such-compiler"):
        build("avx2", tmp_path)


def test_a_compiler_that_refuses_the_newest_variant(make_cpu, monkeypatch, tmp_path):
    isas = supported_isas()
    if len(isas) < 2:
        pytest.skip("only one variant here")
    real = build_module._compile

    def old_compiler(compiler, flags, library):
        if isas[0] in library.name.split("-"):
            raise CompilationError("unrecognised option")
        real(compiler, flags, library)

    monkeypatch.setattr(build_module, "_compile", old_compiler)
    assert load_library(tmp_path)[1] == isas[1]


def test_a_cache_that_can_not_be_written(isa, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelBuildError, match="can't be used"):
        build(isa, tmp_path / "file")


def test_variants_by_processor_flags():
    avx2 = {"avx2", "fma", "f16c"}
    avx512 = avx2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    assert supported_isas(frozenset()) == []
    assert supported_isas(frozenset(avx2)) == ["avx2"]
    assert supported_isas(frozenset(avx512)) == ["avx512", "avx2"]
    assert supported_isas(frozenset(avx512 | {"avx512_bf16"})) == ["avx512", "avx2"], "products of codes are wanted too"
    assert supported_isas(frozenset(avx512 | {"avx512_bf16", "avx512_vnni"})) == ["avx512_bf16", "avx512", "avx2"]


def test_auto_is_the_best_that_runs(make_cpu, kernel_cache, batches):
    assert load_backend("auto", batches.spec(), cache_dir=kernel_cache).name == "cpu"
    odd = batches.spec(1, (2, 1), 24)
    assert load_backend("auto", odd, cache_dir=kernel_cache).name == "torch"
    with pytest.raises(BackendUnavailableError, match="multiple of 16"):
        load_backend("cpu", odd, cache_dir=kernel_cache)


def test_errors_say_what_to_do(batches):
    with pytest.raises(ValueError, match="choose one of auto, reference"):
        load_backend("triton", batches.spec())
    with pytest.raises(BackendUnavailableError, match="CUDA device"):
        load_backend("flashinfer", batches.spec())
    with pytest.raises(BackendUnavailableError, match="runs on the device `cpu`"):
        load_backend("cpu", batches.spec(), device="cuda")
    with pytest.raises(ValueError, match="no multiple"):
        load_backend("reference", batches.spec(1, (3, 2), 16))


def test_one_openmp_runtime_in_the_process(make_cpu, kernel_cache):
    script = f"""
import torch
from pathlib import Path
from radixserve_kernels.interface import AttentionSpec
from radixserve_kernels.cpu.backend import CpuBackend
from radixserve_kernels.cpu.openmp import loaded_runtimes
torch.ones(1000, 1000).sum()
before = loaded_runtimes()
CpuBackend(AttentionSpec(1, 2, 1, 16, 1.0), 2, Path({str(kernel_cache)!r})).silu_mul(torch.ones(64, 4096))
assert loaded_runtimes() == before, (before, loaded_runtimes())
assert len(before) == 1, before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_importing_the_package_loads_no_torch():
    script = "import radixserve_kernels, radixserve_kernels.interface, radixserve_kernels.registry, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_flashinfer_plans_once_a_step(emulator, batches):
    from radixserve_kernels.flashinfer import FlashInferBackend

    spec = batches.spec(3, (4, 2), 32, window=6)
    backend = FlashInferBackend(spec, "cpu", module=emulator)
    backend.allocate_kv(9, 4, torch.bfloat16)
    q, k, v = batches.random_qkv(8, spec, torch.bfloat16)
    for step in (1, 2):
        backend.prepare(batches.ragged([(7, 8), (1, 9)], 4, 9))
        for layer in range(3):
            backend.attend(layer, q, k, v)
        assert backend._wrapper.plans == step


def test_sources_are_in_the_package():
    folder = Path(build_module.__file__).parent / "csrc"
    headers = {
        "attention.h",
        "gemm.h",
        "integers.h",
        "linear.h",
        "pack.h",
        "plan.h",
        "rows.h",
        "softmax.h",
        "threads.h",
        "tile.h",
        "vec.h",
        "workspace.h",
    }
    assert headers | {"attention.cpp", "cascade.cpp", "fused.cpp", "linear.cpp", "plan.cpp", "stack.cpp"} == {
        p.name for p in folder.iterdir()
    }
