"""Random numbers that depend on the request alone: a hash of (seed, output position), never a shared stream."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits for output position `position` (0 is the first) of a request with this 64-bit seed.

    The seed is mixed before the position is added, so that neighbouring seeds don't share shifted streams.
    """
    start = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((start + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53
