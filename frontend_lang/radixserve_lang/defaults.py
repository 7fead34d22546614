"""The environment is read here and nowhere else."""

from __future__ import annotations

import os

URL_VARIABLE = "RADIXSERVE_URL"
API_KEY_VARIABLE = "RADIXSERVE_API_KEY"


def default_url() -> str:
    """Where programs run when no engine is named; "" when unset."""
    return os.environ.get(URL_VARIABLE, "")


def default_api_key() -> str:
    """The key of programs that name none; "" when unset."""
    return os.environ.get(API_KEY_VARIABLE, "")
