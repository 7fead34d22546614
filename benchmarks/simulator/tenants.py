"""Who sends which session. No trace names tenants, so they are assigned here, by a law that the result states."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from .draws import unit

CLASSES = ("interactive", "standard", "background")


@dataclass(frozen=True, slots=True)
class Member:
    """One tenant of a run."""

    name: str
    part: str
    """Of which part of the tenants it is one (`Tenants.part`)."""
    weight: float


class Tenants:
    """`num_tenants` tenants; a session belongs to the k-th with a probability proportional to 1 / k^exponent."""

    def __init__(self, num_tenants: int, exponent: float, seed: int) -> None:
        if num_tenants < 1 or exponent < 0:
            raise ValueError("at least one tenant and an exponent of at least 0 are needed")
        self._seed = seed
        self._sums = list(accumulate(1 / rank**exponent for rank in range(1, num_tenants + 1)))
        self.names = [f"t{rank:04d}" for rank in range(1, num_tenants + 1)]
        self.description = f"{num_tenants} tenants by a Zipf law with exponent {exponent:g}, seed {seed}"

    def of(self, group: int, repetition: int) -> str:
        """The tenant of all sessions of a group in one repetition of the trace."""
        place = unit(self._seed, 1, group, repetition) * self._sums[-1]
        return self.names[min(bisect_right(self._sums, place), len(self.names) - 1)]

    def part(self, name: str) -> str:
        """`heavy` for the first tenth of the ranks, `light` for the last half, `middle` between; for grouping results."""
        rank = self.names.index(name) if len(self.names) < 2 else int(name[1:]) - 1
        if rank * 10 < len(self.names):
            return "heavy"
        return "light" if rank * 2 >= len(self.names) else "middle"


class ClassMix:
    """Which class a session asks for: `interactive:0.5,background:0.5`."""

    def __init__(self, text: str, seed: int) -> None:
        shares: dict[str, float] = {}
        for part in text.split(","):
            name, _, share = part.partition(":")
            if name not in CLASSES:
                raise ValueError(f"{name!r} is no class: write {', '.join(CLASSES)}, each with its share, as in standard:1")
            shares[name] = float(share or 1)
        if min(shares.values()) < 0 or sum(shares.values()) <= 0:
            raise ValueError("shares of classes can't be negative, nor all 0")
        self._seed = seed
        self._names = list(shares)
        self._sums = list(accumulate(shares.values()))

    def of(self, program: int) -> str:
        """The class of a session."""
        place = unit(self._seed, 2, program) * self._sums[-1]
        return self._names[min(bisect_right(self._sums, place), len(self._names) - 1)]
