"""What was compiled lately, and what could not be."""

from __future__ import annotations

from collections import OrderedDict


class PayloadCache:
    """Compiled payloads by key, least recently used first out, bounded by their bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._payloads: OrderedDict[str, bytes] = OrderedDict()
        self.num_bytes = 0
        """Held now."""

    def get(self, key: str) -> bytes | None:
        """The payload, now the most recently used."""
        payload = self._payloads.get(key)
        if payload is not None:
            self._payloads.move_to_end(key)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Keep it, at the cost of others; one that is larger than all the room is not kept."""
        old = self._payloads.pop(key, None)
        self.num_bytes -= len(old) if old is not None else 0
        if len(payload) > self._max_bytes:
            return
        self._payloads[key] = payload
        self.num_bytes += len(payload)
        while self.num_bytes > self._max_bytes:
            _, dropped = self._payloads.popitem(last=False)
            self.num_bytes -= len(dropped)


class FailureCache:
    """Why keys failed, for a while: the same bad grammar sent again and again must not occupy the worker each time."""

    def __init__(self, max_entries: int, ttl_s: float) -> None:
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._failures: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def get(self, key: str, now: float) -> str | None:
        """The message, if the key failed less than the time to live ago."""
        entry = self._failures.get(key)
        if entry is None or entry[0] <= now:
            return None
        return entry[1]

    def put(self, key: str, message: str, now: float) -> None:
        """Remember a failure."""
        self._failures.pop(key, None)
        self._failures[key] = (now + self._ttl_s, message)
        while len(self._failures) > self._max_entries:
            self._failures.popitem(last=False)
