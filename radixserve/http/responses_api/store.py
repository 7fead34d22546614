"""Answers that a later request may go on from, bounded in number, bytes and time. By key: who has another key finds nothing."""

from __future__ import annotations

import hashlib
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
    """The oldest go first: of a key that has too much, then of the key that has most. Used by one event loop alone."""

    def __init__(self, config: HttpConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._by_owner: dict[str, OrderedDict[str, Stored]] = {}
        self._bytes: dict[str, int] = {}

    @property
    def num_bytes(self) -> int:
        """What is stored, all conversations counted in full."""
        return sum(self._bytes.values())

    def put(self, api_key: str, response: dict[str, Any], conversation: tuple[Segment, ...]) -> None:
        """Remember an answer; one that is too large for the store is not."""
        config, owner = self._config, _owner(api_key)
        size = len(orjson.dumps(response)) + sum(_num_bytes(one) for one in conversation)
        if size > config.max_stored_bytes_per_key:
            return
        now = self._clock()
        self._expire(now)
        while self._bytes.get(owner, 0) + size > config.max_stored_bytes_per_key or (
            len(self._by_owner.get(owner, ())) >= config.max_stored_per_key
        ):
            self._drop_oldest(owner)
        while self._bytes and self.num_bytes + size > config.max_stored_bytes:
            self._drop_oldest(max(self._bytes, key=lambda one: self._bytes[one]))
        self._by_owner.setdefault(owner, OrderedDict())[response["id"]] = Stored(
            response, conversation, size, now + config.stored_ttl_s
        )
        self._bytes[owner] = self._bytes.get(owner, 0) + size

    def get(self, api_key: str, response_id: str) -> Stored | None:
        """An answer of this key, if it is still there."""
        self._expire(self._clock())
        own = self._by_owner.get(_owner(api_key))
        return None if own is None else own.get(response_id)

    def delete(self, api_key: str, response_id: str) -> bool:
        """Forget an answer; False if there is none."""
        if self.get(api_key, response_id) is None:
            return False
        self._drop(_owner(api_key), response_id)
        return True

    def _expire(self, now: float) -> None:
        """All live equally long, so each key's oldest are its first."""
        for owner in list(self._by_owner):
            while (own := self._by_owner.get(owner)) and next(iter(own.values())).expires_at <= now:
                self._drop_oldest(owner)

    def _drop_oldest(self, owner: str) -> None:
        self._drop(owner, next(iter(self._by_owner[owner])))

    def _drop(self, owner: str, response_id: str) -> None:
        self._bytes[owner] -= self._by_owner[owner].pop(response_id).num_bytes
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._bytes[owner]


def _owner(api_key: str) -> str:
    return hashlib.blake2b(api_key.encode(), digest_size=16).hexdigest()


def _num_bytes(segment: Segment) -> int:
    return 100 + len(segment.text) * 2 + (len(orjson.dumps(segment.fields)) if segment.fields else 0)
