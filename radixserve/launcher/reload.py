"""The tenants file may change while the engine runs: what is right in it is taken over, what is wrong is told and left."""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from radixserve.tenants import TenantsFileError, load_tenants

if TYPE_CHECKING:
    from pathlib import Path

    from radixserve.tenants import TenantsFile
    from radixserve_tokenizer.config import TenantConfig

logger = logging.getLogger(__name__)

_LOOK_S = 1.0


class TenantsWatch:
    """Notices changes by the file's time and size. An editor may take two writes for one change, so it has to have come to rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._look_at = 0.0
        self._read = self._seen = self._signature()

    def look_again(self) -> None:
        """Read it at the next `poll`, changed or not."""
        self._read, self._look_at = (), 0.0

    def poll(self, now: float, old: TenantsFile) -> TenantsFile | None:
        """What to go on with, if that is not `old`. Tells the log of a file that can't be used, once a change."""
        if now < self._look_at:
            return None
        self._look_at = now + _LOOK_S
        before, self._seen = self._seen, self._signature()
        if self._seen in (self._read, None) or (self._seen != before and self._read):
            return None
        self._read = self._seen
        try:
            new = load_tenants(self._path)
        except TenantsFileError as error:
            logger.error("the changed tenants file can't be used, and the tenants stay as they were: %s", error)
            return None
        _tell_what_waits(old, new)
        new = replace(new, public_prefixes=old.public_prefixes)
        return None if new == old else new

    def _signature(self) -> tuple[int, ...] | None:
        """None: there is no such file now."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def write_update(path: Path, declared: TenantsFile) -> None:
    """Hand the tenants to the tokenizer process, whole or not at all. Raises `OSError`."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(declared.tenants))
    os.replace(name, path)


def _tell_what_waits(old: TenantsFile, new: TenantsFile) -> None:
    if old.public_prefixes != new.public_prefixes:
        logger.warning("the tenants file has other public prefixes: they are computed when the server starts the next time")
    if _shares(old.tenants) != _shares(new.tenants):
        logger.warning("the tenants file has other shares of the KV pool: they hold when the server starts the next time")


def _shares(tenants: tuple[TenantConfig, ...]) -> set[tuple[str, float, float]]:
    """Of those that have any."""
    found = {(one.name, one.reserved_share, one.max_share) for one in tenants}
    return {share for share in found if share[1:] != (0.0, 1.0)}
