"""Sets of characters as sorted ranges of code points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class CharSet:
    """Characters, as disjoint ranges (first, last) in ascending order. Surrogates are no characters and are left out."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> CharSet:
        """Any ranges, in any order and overlapping."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(_subtract(merged, *_SURROGATES)))

    def complement(self) -> CharSet:
        """Every other character."""
        ranges: list[tuple[int, int]] = [(0, _LAST)]
        for first, last in self.ranges:
            ranges = _subtract(ranges, first, last)
        return CharSet.of(ranges)

    def without(self, other: CharSet) -> CharSet:
        """What is here and not there."""
        ranges = list(self.ranges)
        for first, last in other.ranges:
            ranges = _subtract(ranges, first, last)
        return CharSet(tuple(ranges))

    def __contains__(self, char: str) -> bool:
        return any(first <= ord(char) <= last for first, last in self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of(self.ranges + other.ranges)


def _subtract(ranges: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    rest: list[tuple[int, int]] = []
    for first, last in ranges:
        if first < low:
            rest.append((first, min(last, low - 1)))
        if last > high:
            rest.append((max(first, high + 1), last))
    return rest


def chars(text: str) -> CharSet:
    """The characters of a string."""
    return CharSet.of((ord(char), ord(char)) for char in text)


ANY = CharSet.of([(0, _LAST)])
DIGIT = CharSet.of([(0x30, 0x39)])
WORD = CharSet.of([(0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), (0x5F, 0x5F)])
SPACE = chars("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff") | CharSet.of([(0x2000, 0x200A)])
"""ECMAScript's white space and line ends."""
LINE_END = chars("\n\r\u2028\u2029")
"""What `.` doesn't match in ECMAScript."""
