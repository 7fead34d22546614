"""CURVE keys for `tcp://`: whom this client trusts, and who it is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import zmq

from radixserve_lang.errors import ConnectionFailedError

#: Z85 text of 32 bytes.
_KEY = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
#: As `radixserve keygen` writes it; both the certificates of libzmq and TOML look like this.
_LINE = re.compile(r"""^\s*(public|secret)[-_]key\s*=\s*["'](.*?)["']\s*(?:#.*)?$""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Z85 texts of 40 characters. `repr` shows no secret."""

    server: bytes
    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"<CurveKeys of client {self.public.decode()}>"


def curve_keys(url: str, server_key: str, client_keys: str | os.PathLike[str]) -> CurveKeys | None:
    """Keys for an address: None for `ipc://`, which needs none. Raises `ConnectionFailedError` for what is missing or wrong.

    `server_key` is the server's public key, or a file that holds it; `client_keys` a file with this client's pair.
    """
    if not url.startswith("tcp://"):
        return None
    if not server_key or not os.fspath(client_keys):
        missing = "the server's public key (server_key=)" if not server_key else "a file of your own keys (client_keys=)"
        raise ConnectionFailedError(f"{url} needs {missing}; `radixserve keygen` makes keys")
    public, secret = _pair(Path(client_keys))
    return CurveKeys(_server_key(server_key), public, secret)


def _server_key(given: str) -> bytes:
    if _KEY.fullmatch(given):
        return given.encode()
    path = Path(given)
    if not path.is_file():
        raise ConnectionFailedError(f"server_key is neither a key of 40 characters nor a file that is there: {given!r}")
    found = _read(path)
    if "public" not in found:
        raise ConnectionFailedError(f"{path} has no public key of a server")
    return found["public"]


def _pair(path: Path) -> tuple[bytes, bytes]:
    found = _read(path)
    if "secret" not in found:
        raise ConnectionFailedError(f"{path} has no secret key: give the secret file that `radixserve keygen` wrote")
    derived = zmq.curve_public(found["secret"])
    if found.get("public", derived) != derived:
        raise ConnectionFailedError(f"the public key in {path} does not belong to the secret one; make new keys")
    return derived, found["secret"]


def _read(path: Path) -> dict[str, bytes]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectionFailedError(f"the keys in {path} can't be read: {error}") from error
    found: dict[str, bytes] = {}
    for kind, key in _LINE.findall(text):
        if not _KEY.fullmatch(key):
            raise ConnectionFailedError(f"the {kind} key in {path} is no key of 40 characters")
        found[kind] = key.encode()
    return found
