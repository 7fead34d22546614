"""What each tenant has used, kept in memory and, where a file is named, across restarts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.tenants.store import AccountFile, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from radixserve_runtime.protocol import Usage

_FLUSH_S = 1.0
#: Tenants of which statistics (and with them the labels of metrics) name each; the rest is one row.
MAX_NAMED = 200


@dataclass(slots=True)
class Totals:
    """Sums since the account began."""

    requests: int = 0
    """Programs that were admitted."""
    refused: int = 0
    """Programs that were not, for a limit of the tenant or of the engine."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens whose KV came from the cache."""
    output_tokens: int = 0
    kv_token_s: float = 0.0
    """KV held by running generations and by leases, in token-seconds."""
    queue_s: float = 0.0
    """Time that generations waited before they ran, in seconds."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Totals:
        """From values in the order of the fields."""
        totals = cls()
        for each, value in zip(fields(cls), values, strict=True):
            setattr(totals, each.name, value)
        return totals

    def add(self, other: Totals) -> None:
        """Add another account's sums."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


_COLUMNS = tuple(each.name for each in fields(Totals))
_values: Callable[[Totals], tuple[float, ...]] = attrgetter(*_COLUMNS)


class Account:
    """One tenant's sums; whoever changes them goes through here, so that they are written."""

    __slots__ = ("is_dirty", "totals", "used_at")

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.used_at = float("-inf")
        self.is_dirty = False

    def admitted(self, now: float) -> None:
        """A program was admitted."""
        self.totals.requests += 1
        self._touch(now)

    def refused(self, now: float) -> None:
        """A program was refused."""
        self.totals.refused += 1
        self._touch(now)

    def used(self, usage: Usage, held_s: float, now: float) -> None:
        """A generation or scoring has ended; it was held back for `held_s` before the runtime was given it."""
        totals = self.totals
        totals.input_tokens += usage.prompt_tokens
        totals.cached_tokens += usage.cached_tokens
        totals.output_tokens += usage.output_tokens
        totals.kv_token_s += usage.kv_token_s
        totals.queue_s += usage.queued_s + held_s
        self._touch(now)

    def leased(self, token_s: float, now: float) -> None:
        """A lease has ended that kept KV for so many token-seconds."""
        self.totals.kv_token_s += token_s
        self._touch(now)

    def _touch(self, now: float) -> None:
        self.is_dirty, self.used_at = True, now


class Accounts:
    """All accounts, those of tenants that are no longer in the settings included. Written once a second, by a thread."""

    def __init__(self, path: Path | None) -> None:
        """Raises `AccountFileError` if the file can't be used."""
        self._file = None if path is None else AccountFile(path, _COLUMNS)
        self._accounts: dict[str, Account] = {}
        self._next_flush = 0.0
        if self._file is not None:
            for name, values in self._file.read():
                self._accounts[name] = Account(Totals.of(values))

    def of(self, tenant: str) -> Account:
        """A tenant's account; a new one if it has none."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(Totals())
        return account

    def tick(self, now: float) -> None:
        """Hand what has changed to the writer, about once a second. Never waits for it."""
        if self._file is not None and now >= self._next_flush and self._file.write(self._changed()):
            self._next_flush = now + _FLUSH_S
            for account in self._accounts.values():
                account.is_dirty = False

    def close(self) -> None:
        """Write what has changed, and wait for it."""
        if self._file is not None:
            self._file.close(self._changed())

    def describe(self, tenant: str | None = None) -> dict[str, dict[str, Any]]:
        """Accounts by tenant: all of them, or one alone."""
        names = self._accounts if tenant is None else [tenant]
        return {name: asdict(self.of(name).totals) for name in names}

    def most_recent(self) -> tuple[dict[str, Totals], Totals]:
        """The accounts used last, at most `MAX_NAMED`, and the sum of all others."""
        order = sorted(self._accounts, key=lambda name: self._accounts[name].used_at, reverse=True)
        rest = Totals()
        for name in order[MAX_NAMED:]:
            rest.add(self._accounts[name].totals)
        return {name: self._accounts[name].totals for name in order[:MAX_NAMED]}, rest

    def _changed(self) -> list[Row]:
        return [(name, _values(account.totals)) for name, account in self._accounts.items() if account.is_dirty]
