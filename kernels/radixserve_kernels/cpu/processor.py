"""Which instruction sets this processor and system have, best first."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Literal, TypeAlias

Isa: TypeAlias = Literal["avx512_bf16", "avx512", "avx2"]

#: What a variant needs, as /proc/cpuinfo names it, best variant first.
_NEEDS: dict[Isa, frozenset[str]] = {
    "avx512_bf16": frozenset(
        {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "avx2", "fma", "f16c"}
    ),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
}


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The processor's flags as Linux lists them; empty where it doesn't."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def supported_isas(flags: frozenset[str] | None = None) -> list[Isa]:
    """Variants that run here, best first; empty where no compiled kernel does."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return []
    have = cpu_flags() if flags is None else flags
    return [isa for isa, needs in _NEEDS.items() if needs <= have]
