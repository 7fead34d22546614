"""Seeds by place: the same program seed gives every op the same seed, whatever shared the batch with it."""

from __future__ import annotations

import hashlib
import secrets

_MASK = (1 << 64) - 1

#: A branch's path: for each fork from the root, which child of its parent it is (counted over all forks of that parent).
BranchPath = tuple[int, ...]


def unsigned(seed: int) -> int:
    """Any integer as an unsigned 64-bit seed."""
    return seed & _MASK


def random_seed() -> int:
    """A seed for a program that gave none."""
    return secrets.randbits(64)


def op_seed(program_seed: int, path: BranchPath, index: int) -> int:
    """Seed of generation number `index` of the branch at `path`: 64 bits of BLAKE2b over the three."""
    place = ",".join(map(str, (program_seed, len(path), *path, index)))
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "little")
