"""Who asks: an API key becomes a tenant, and nothing else does."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from radixserve_tokenizer.config import TenantConfig
from radixserve_tokenizer.peers import CURVE_KEY_CHARS
from radixserve_tokenizer.tenants.quotas import Quota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.protocol import ModelInfo
    from radixserve_tokenizer.protocol import Priority
    from radixserve_tokenizer.tenants.accounts import Account, Accounts

#: From the most urgent down.
_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_running", "max_queued", "max_programs", "max_context")
CLASSES: tuple[Priority, ...] = ("interactive", "standard", "background")


class TenantSettingsError(ValueError):
    """The tenants' settings can't be used; the text says whose and why."""


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant: its settings, its quota, its account, and how many of its generations are where."""

    config: TenantConfig
    quota: Quota
    account: Account
    num_queued: int = 0
    """Generations that wait for their first token, held back ones included."""
    num_expected: int = 0
    """Programs that were just admitted and have no generation yet."""
    num_programs: int = 0
    """Programs that are open."""
    num_running: int = 0
    """Generations that the runtime has been given."""
    num_undecided: int = 0
    """Programs that wait to be admitted or refused."""
    num_kept_bytes: int = 0
    """What is remembered of its open programs (programs/upkeep.py)."""

    @property
    def classes(self) -> tuple[Priority, ...]:
        """Those that it may use, the most urgent first."""
        return tuple(each for each in CLASSES if each in self.config.classes)

    @property
    def name(self) -> str:
        """Empty for the anonymous tenant."""
        return self.config.name

    def bounded(self, model: ModelInfo) -> ModelInfo:
        """The model as far as this tenant may use its context."""
        most = self.config.max_context
        return msgspec.structs.replace(model, max_context=most) if 0 < most < model.max_context else model

    def class_for(self, asked: Priority) -> Priority:
        """The class that a program gets: the asked one, or the best below it that this tenant may use.

        A tenant that may use nothing at or below what was asked gets the lowest class that it has, which is the nearest.
        """
        rank = CLASSES.index(asked)
        for each in self.classes:
            if CLASSES.index(each) >= rank:
                return each
        return self.classes[-1]


class Tenants:
    """All tenants. Without any in the settings everybody is the one anonymous tenant, whatever key they show."""

    def __init__(self, configs: Sequence[TenantConfig], accounts: Accounts, now: float) -> None:
        """Raises `TenantSettingsError`."""
        anonymous = TenantConfig(name="")
        self._accounts = accounts
        self._anonymous = None if configs else Tenant(anonymous, Quota(anonymous, now), accounts.of(""))
        self._known: dict[str, Tenant] = {}
        """By name: also those that are no longer in the settings and have programs that run."""
        self._declare(configs, now)

    def update(self, configs: Sequence[TenantConfig], now: float) -> bool:
        """Other settings from now on; whether anything has changed. Programs that run go on, whoever's they are.

        Raises `TenantSettingsError`, and then nothing has changed. A server without tenants stays one, and the other way round.
        """
        if (self._anonymous is not None) != (not configs):
            raise TenantSettingsError("a server can't gain its first tenants or lose its last while it runs: start it again")
        if [one.config for one in self._all] == list(configs):
            return False
        self._declare(configs, now)
        return True

    def _declare(self, configs: Sequence[TenantConfig], now: float) -> None:
        _check(configs)
        self._all = [self._tenant(config, now) for config in configs]
        self._known = {one.name: one for one in [*self._known.values(), *self._all] if one in self._all or one.num_programs}
        self._keys: list[tuple[bytes, int]] = [
            (bytes.fromhex(key_hash), index) for index, config in enumerate(configs) for key_hash in config.key_hashes
        ]
        self._by_curve_key = {key: one for one in self._all for key in one.config.curve_keys}

    def _tenant(self, config: TenantConfig, now: float) -> Tenant:
        tenant = self._known.get(config.name)
        if tenant is None:
            return Tenant(config, Quota(config, now), self._accounts.of(config.name))
        tenant.config = config
        tenant.quota.change(config, now)
        return tenant

    @property
    def all(self) -> list[Tenant]:
        """In the order of the settings."""
        return [self._anonymous] if self._anonymous is not None else list(self._all)

    def by_curve_key(self, curve_key: str) -> Tenant | None:
        """Whose public key this is; None if nobody's."""
        return self._by_curve_key.get(curve_key)

    def caller(self, api_key: str, curve_key: str | None) -> Tenant | None:
        """Who asks: over TCP the tenant of the connection's key, whom an API key may only confirm; else the API key's."""
        if curve_key is None:
            return self.identify(api_key)
        tenant = self.by_curve_key(curve_key)
        return tenant if not api_key or self.identify(api_key) is tenant else None

    def identify(self, api_key: str) -> Tenant | None:
        """Whose key this is; None if nobody's.

        Every hash is compared, each in constant time: how long it takes tells neither whether a key is near one nor whose it is.
        """
        if self._anonymous is not None:
            return self._anonymous
        digest = hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).digest()
        found = 0
        for key_hash, index in self._keys:
            found |= (index + 1) * hmac.compare_digest(digest, key_hash)
        return self._all[found - 1] if found else None


def _check(configs: Sequence[TenantConfig]) -> None:
    names: set[str] = set()
    owners: dict[str, str] = {}
    curve_owners: dict[str, str] = {}
    for config in configs:
        if not config.name:
            raise TenantSettingsError("a tenant needs a name that is not empty")
        if config.name in names:
            raise TenantSettingsError(f"tenant {config.name!r} is there twice: names must differ")
        names.add(config.name)
        unknown = [each for each in config.classes if each not in CLASSES]
        if unknown or not config.classes:
            raise TenantSettingsError(f"tenant {config.name!r}: classes must be one or more of {', '.join(CLASSES)}")
        if min(getattr(config, name) for name in _LIMITS) < 0:
            raise TenantSettingsError(f"tenant {config.name!r}: limits must be 0 (none) or more")
        _check_curve_keys(config, curve_owners)
        for key_hash in config.key_hashes:
            # The hash itself is not shown: it belongs to a secret.
            if not _is_sha256(key_hash):
                raise TenantSettingsError(f"tenant {config.name!r}: a key hash must be the 64 hex digits of a SHA-256")
            other = owners.setdefault(key_hash.lower(), config.name)
            if other != config.name:
                raise TenantSettingsError(
                    f"tenants {other!r} and {config.name!r} have the same key: make a new one for one of them"
                )


def _check_curve_keys(config: TenantConfig, owners: dict[str, str]) -> None:
    for key in config.curve_keys:
        if len(key) != CURVE_KEY_CHARS:
            raise TenantSettingsError(
                f"tenant {config.name!r}: a CURVE key must be the {CURVE_KEY_CHARS} characters of a public key"
            )
        other = owners.setdefault(key, config.name)
        if other != config.name:
            raise TenantSettingsError(
                f"tenants {other!r} and {config.name!r} have the same CURVE key: make a new one for one of them"
            )


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and all(char in "0123456789abcdefABCDEF" for char in text)
