"""What a workload is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from radixserve.bench.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A part of a workload: sends its requests through the run, and returns when all have ended.
Part: TypeAlias = Callable[[Run], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Workload:
    """A named workload. Its parts are measured one after the other, each as a row of its own."""

    name: str
    summary: str
    parts: Mapping[str, Part]
    """By name; "" for the only one."""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sizes (shape.py) that differ from a shape's own."""
    settable: frozenset[str] = frozenset()
    """Sizes that can be set; the others are fixed or have no meaning here."""
    open_arrivals: bool = False
    """Requests arrive by the clock, whatever runs."""
