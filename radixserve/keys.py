"""CURVE key pairs for tcp://: files that only their owner may read, in a form that ZeroMQ's own tools read too."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve.config import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_LINE = re.compile(r"""^[ \t]*(public|secret)-key[ \t]*=[ \t]*["']([^"'\s]{40})["'][ \t]*$""", re.MULTILINE)
_HEADING = "# A CURVE key pair of RadixServe. The secret key is a password: keep this file to yourself."


class KeyFileError(ConfigError):
    """A key file that can't be written or used."""


@dataclass(frozen=True)
class KeyPair:
    """Both as text (Z85, 40 characters)."""

    public: str
    secret: str = field(repr=False)


def new_pair() -> KeyPair:
    """A random pair."""
    import zmq

    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def write_pair(path: Path, pair: KeyPair, *, replace: bool = False) -> None:
    """A new file of mode 0600, in place of an old one only if `replace` is true. Raises `KeyFileError`."""
    text = f'{_HEADING}\npublic-key = "{pair.public}"\nsecret-key = "{pair.secret}"\n'
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
            if replace:
                os.replace(name, path)
            else:
                os.link(name, path)  # unlike a rename, it fails if there is one
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    except FileExistsError as error:
        raise KeyFileError(f"{path} is there already; --force replaces it, and then its old key is of no use any more") from error
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error


def read_pair(path: Path) -> KeyPair:
    """A pair as `write_pair` or ZeroMQ's certificate tools write it. Raises `KeyFileError`, also if others may read the file."""
    try:
        mode = path.stat().st_mode
        text = path.read_bytes().decode("ascii", "replace")
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}; `radixserve keygen {path}` makes a key file") from error
    if stat.S_IMODE(mode) & 0o077:
        raise KeyFileError(f"{path} is open to other users, and holds a secret key: chmod 600 {path}")
    keys = dict(_LINE.findall(text))
    if "secret" not in keys:
        raise KeyFileError(f"{path} holds no secret key; `radixserve keygen` makes a key file")
    return KeyPair(_public_of(keys["secret"], path), keys["secret"])


def _public_of(secret: str, path: Path) -> str:
    import zmq

    try:
        return zmq.curve_public(secret.encode()).decode()
    except (ValueError, zmq.ZMQError) as error:
        raise KeyFileError(f"{path}: its secret key is no CURVE key; `radixserve keygen` makes one") from error
