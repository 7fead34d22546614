"""Means and quantiles of many numbers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Of nothing, all are 0."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float


class Samples:
    """8 bytes a number."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, value: float) -> None:
        """One more."""
        self._values.append(value)

    def extend(self, other: Samples) -> None:
        """All of another."""
        self._values.extend(other._values)

    def summary(self) -> Summary:
        """Sorts. A quantile is the smallest number that so many are not above."""
        if not self._values:
            return Summary(0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(self._values)
        count = len(ordered)
        return Summary(
            count, sum(ordered) / count, ordered[(count - 1) // 2], ordered[max(0, -(-count * 99 // 100) - 1)], ordered[-1]
        )
