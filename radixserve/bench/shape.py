"""The size of a workload: what its flags set. Each workload takes some of them and has defaults of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from radixserve.bench.ask import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def _size(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes. Raises `BenchError` on one that can't be."""

    concurrency: int = _size(16, "Requests, agents or trees at a time.")
    requests: int = _size(32, "Requests, agents, trees or sessions in all.")
    prompt_tokens: int = _size(128, "Tokens of a prompt, or of what each request adds to what is shared.")
    shared_tokens: int = _size(1024, "Tokens of the system prompt that is shared.")
    output_tokens: int = _size(128, "Tokens of an output.")
    turns: int = _size(6, "Turns of an agent.")
    branches: int = _size(16, "Continuations of a prompt, or thoughts of a node.")
    depth: int = _size(3, "Levels of a tree.")
    rate: float = _size(0.5, "Agents that arrive in a second.")
    think_s: float = _size(1.0, "Seconds between an agent's answer and its next turn.")
    ttft_limit_s: float = _size(2.0, "Goodput: most seconds to the first text.")
    itl_limit_s: float = _size(0.15, "Goodput: most seconds between tokens.")
    trace: Path | None = field(default=None, metadata={"help": "A recorded trace."})
    scale_length: float = _size(1 / 32, "Trace: what lengths are multiplied by.")
    scale_output: float = _size(0.0, "Trace: what output lengths are multiplied by; 0: as lengths.")
    scale_time: float = _size(1.0, "Trace: what pauses and arrival times are multiplied by.")
    max_think_s: float = _size(60.0, "Trace: longer pauses are cut to this (before --scale-time).")

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name in ("scale_output", "think_s", "max_think_s", "scale_time"):
                if not value >= 0:
                    raise BenchError(f"{spec.name} must not be negative, but is {value}")
            elif spec.name != "trace" and not value > 0:
                raise BenchError(f"{spec.name} must be above 0, not {value}")


#: Every workload judges its requests by a service level.
ALWAYS = frozenset(("ttft_limit_s", "itl_limit_s"))


def shape_of(workload: str, defaults: Mapping[str, Any], settable: frozenset[str], given: Mapping[str, Any]) -> Shape:
    """The defaults with what was given. Raises `BenchError` for a size that this workload does not take."""
    for name in given:
        if name not in settable | ALWAYS:
            takes = ", ".join("--" + one.replace("_", "-") for one in sorted(settable | ALWAYS))
            raise BenchError(f"{workload} has no {name.replace('_', ' ')} to set; it takes {takes}")
    return replace(Shape(), **{**defaults, **given})
