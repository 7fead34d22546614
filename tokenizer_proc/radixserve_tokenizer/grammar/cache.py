"""What was compiled lately, and what could not be; each tenant's own, and no tenant's at another's cost."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRoom(Generic[T]):
    """Values of tenants by key in a bounded room. Where it is full, the tenant that holds the most loses what it used least
    recently: whoever holds no more than an even share loses nothing to others.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._held: dict[str, OrderedDict[str, tuple[T, int]]] = {}
        self._sizes: dict[str, int] = {}
        self.size = 0
        """Of all that is held now."""

    def get(self, tenant: str, key: str) -> T | None:
        """The tenant's value, now the most recently used."""
        held = self._held.get(tenant)
        if held is None or key not in held:
            return None
        held.move_to_end(key)
        return held[key][0]

    def put(self, tenant: str, key: str, value: T, size: int) -> None:
        """Keep it; one that is larger than all the room is not kept. `size` is in the room's unit, above 0."""
        self.drop(tenant, key)
        if size > self._max_size:
            return
        self._held.setdefault(tenant, OrderedDict())[key] = (value, size)
        self._grow(tenant, size)
        while self.size > self._max_size:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self.drop(largest, next(iter(self._held[largest])))

    def drop(self, tenant: str, key: str) -> None:
        """Forget it, if it is there."""
        held = self._held.get(tenant)
        if held is None or key not in held:
            return
        _, size = held.pop(key)
        self._grow(tenant, -size)
        if not held:
            del self._held[tenant], self._sizes[tenant]

    def _grow(self, tenant: str, size: int) -> None:
        self.size += size
        self._sizes[tenant] = self._sizes.get(tenant, 0) + size


class FailureCache:
    """Why keys failed, for a while: the same bad grammar sent again and again must not occupy the worker each time."""

    def __init__(self, max_entries: int, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._failures: SharedRoom[tuple[float, str]] = SharedRoom(max_entries)

    def get(self, tenant: str, key: str, now: float) -> str | None:
        """The message, if the tenant's key failed less than the time to live ago."""
        entry = self._failures.get(tenant, key)
        if entry is None or entry[0] <= now:
            return None
        return entry[1]

    def put(self, tenant: str, key: str, message: str, now: float) -> None:
        """Remember a failure."""
        self._failures.put(tenant, key, (now + self._ttl_s, message), 1)
