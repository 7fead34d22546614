"""API keys: random, shown once, stored as hashes alone."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "rs-"
_NUM_BYTES = 32


def new_key() -> str:
    """A key of 256 random bits. Its prefix tells scanners for leaked secrets, and people, what it is."""
    return PREFIX + secrets.token_urlsafe(_NUM_BYTES)


def hash_key(key: str) -> str:
    """The SHA-256 of a key, in hex. A key is random, so that no salt and no slow hash are needed."""
    return hashlib.sha256(key.encode()).hexdigest()
