"""Numbers that look random and depend on nothing but what they are drawn for."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def unit(*values: int) -> float:
    """A number in [0, 1) for these integers (splitmix64, chained)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)
