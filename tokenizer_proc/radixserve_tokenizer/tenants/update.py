"""Tenants that have changed while the process runs: the launcher writes them to a file, and here they are taken over."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import msgspec

from radixserve_tokenizer.config import TenantConfig
from radixserve_tokenizer.tenants.identity import TenantSettingsError

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.services import Services

logger = logging.getLogger(__name__)

_LOOK_S = 0.5


class TenantsUpdate:
    """Looks at the file now and then. Programs that run go on; keys, limits and weights are the new ones at once."""

    def __init__(self, path: str, services: Services) -> None:
        """`path`: JSON, a list of `TenantConfig`; it need not be there. Empty: tenants stay what they were at the start."""
        self._path = path
        self._services = services
        self._look_at = 0.0
        self._seen: tuple[int, int] | None = None

    def tick(self, now: float) -> None:
        """Take over what is new. What can't be is logged, and the old tenants stay."""
        if not self._path or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        try:
            found = os.stat(self._path)
        except OSError:
            return
        if self._seen == (found.st_mtime_ns, found.st_ino):
            return
        self._seen = (found.st_mtime_ns, found.st_ino)
        try:
            with open(self._path, "rb") as file:
                configs = msgspec.json.decode(file.read(), type=tuple[TenantConfig, ...])
            self._take_over(configs, now)
        except (OSError, msgspec.MsgspecError, TenantSettingsError) as error:
            logger.error("the tenants stay as they were: %s", error)

    def _take_over(self, configs: tuple[TenantConfig, ...], now: float) -> None:
        services = self._services
        if not services.tenants.update(configs, now):
            return
        services.slots.look_again()
        services.link.set_weights({config.name: config.weight for config in configs})
        logger.info("%d tenants are taken over from the changed tenants file", len(configs))
