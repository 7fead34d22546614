"""API keys, from the environment: never from flags, which other users of a machine can read."""

from __future__ import annotations

import os

VARIABLES = ("RADIXSERVE_BENCH_KEYS", "RADIXSERVE_API_KEY", "OPENAI_API_KEY")


def keys_of() -> list[str]:
    """The first variable that is set: several keys, comma-separated, of the first; one of the others. Empty: none."""
    many = [key.strip() for key in os.environ.get(VARIABLES[0], "").split(",") if key.strip()]
    if many:
        return many
    return [key for name in VARIABLES[1:] if (key := os.environ.get(name, ""))][:1]
