"""Answers that a later request may go on from, bounded in number, bytes and time. By tenant: another one finds nothing."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve.http.config import HttpConfig
    from radixserve.http.program import Segment


class Stored(NamedTuple):
    """An answer, and the whole conversation that it ends."""

    response: dict[str, Any]
    conversation: tuple[Segment, ...]
    """Without instructions: those belong to one request."""
    num_bytes: int
    expires_at: float


class ResponseStore:
    """The oldest go first: of a tenant that has too much, then of the tenant that has most. Used by one event loop alone."""

    def __init__(self, config: HttpConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._by_tenant: dict[str, OrderedDict[str, Stored]] = {}
        self._bytes: dict[str, int] = {}
        self._num_bytes = 0
        self._in_order: OrderedDict[tuple[str, str], float] = OrderedDict()
        """When each expires. All live equally long, so whatever expires stands at the beginning."""

    @property
    def num_bytes(self) -> int:
        """What is stored, all conversations counted in full."""
        return self._num_bytes

    def put(self, tenant: str, response: dict[str, Any], conversation: tuple[Segment, ...]) -> None:
        """Remember an answer; one that is too large for the store is not."""
        config = self._config
        size = len(orjson.dumps(response)) + sum(_num_bytes(one) for one in conversation)
        if size > config.max_stored_bytes_per_tenant:
            return
        now = self._clock()
        self._expire(now)
        while self._bytes.get(tenant, 0) + size > config.max_stored_bytes_per_tenant or (
            len(self._by_tenant.get(tenant, ())) >= config.max_stored_per_tenant
        ):
            self._drop_oldest(tenant)
        while self._bytes and self._num_bytes + size > config.max_stored_bytes:
            self._drop_oldest(max(self._bytes, key=lambda one: self._bytes[one]))
        stored = Stored(response, conversation, size, now + config.stored_ttl_s)
        self._by_tenant.setdefault(tenant, OrderedDict())[response["id"]] = stored
        self._in_order[tenant, response["id"]] = stored.expires_at
        self._bytes[tenant] = self._bytes.get(tenant, 0) + size
        self._num_bytes += size

    def get(self, tenant: str, response_id: str) -> Stored | None:
        """An answer of this tenant, if it is still there."""
        self._expire(self._clock())
        own = self._by_tenant.get(tenant)
        return None if own is None else own.get(response_id)

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget an answer; False if there is none."""
        if self.get(tenant, response_id) is None:
            return False
        self._drop(tenant, response_id)
        return True

    def _expire(self, now: float) -> None:
        while self._in_order:
            key, expires_at = next(iter(self._in_order.items()))
            if expires_at > now:
                return
            self._drop(*key)

    def _drop_oldest(self, tenant: str) -> None:
        self._drop(tenant, next(iter(self._by_tenant[tenant])))

    def _drop(self, tenant: str, response_id: str) -> None:
        own = self._by_tenant[tenant]
        size = own.pop(response_id).num_bytes
        del self._in_order[tenant, response_id]
        self._num_bytes -= size
        self._bytes[tenant] -= size
        if not own:
            del self._by_tenant[tenant], self._bytes[tenant]


def _num_bytes(segment: Segment) -> int:
    return 100 + len(segment.text) * 2 + (len(orjson.dumps(segment.fields)) if segment.fields else 0)
