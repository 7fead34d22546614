"""The environment is read here and nowhere else."""

from __future__ import annotations

import os

URL_VARIABLE = "RADIXSERVE_URL"
API_KEY_VARIABLE = "RADIXSERVE_API_KEY"
SERVER_KEY_VARIABLE = "RADIXSERVE_SERVER_KEY"
CLIENT_KEYS_VARIABLE = "RADIXSERVE_CLIENT_KEYS"


def default_url() -> str:
    """Where programs run when no engine is named; "" when unset."""
    return os.environ.get(URL_VARIABLE, "")


def default_api_key() -> str:
    """The key of programs that name none; "" when unset."""
    return os.environ.get(API_KEY_VARIABLE, "")


def default_server_key() -> str:
    """The public key of a server over tcp, or a file of it; "" when unset."""
    return os.environ.get(SERVER_KEY_VARIABLE, "")


def default_client_keys() -> str:
    """The file of this client's keys; "" when unset."""
    return os.environ.get(CLIENT_KEYS_VARIABLE, "")
