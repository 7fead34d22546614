"""Keeping a branch's KV while its tool runs, or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.cache.radix import RadixCache

    from .loop import Call


class Leasing(Protocol):
    """Told about pauses."""

    def paused(self, call: Call) -> None:
        """A request ended, and the next of its chain begins with its prompt, after a pause."""
        ...

    def resumed(self, call: Call) -> None:
        """The branch that `call` left goes on: it has a slot again."""
        ...

    def tick(self) -> None:
        """Called before every step."""
        ...


class NoLeases:
    """The cache knows nothing of pauses."""

    def paused(self, call: Call) -> None:
        """Nothing."""

    def resumed(self, call: Call) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""


class ToolLeases:
    """A branch that stopped for a tool is leased until it has a slot again, as far as the time of a lease goes.

    So the lease also covers the wait for a slot: a branch whose KV goes while its next request is queued has gained nothing.
    """

    def __init__(self, cache: RadixCache, clock: Callable[[], float], ttl_s: float) -> None:
        self._leases = cache.leases
        self._clock = clock
        self._ttl_s = ttl_s
        self.num_lost = 0
        """Leases that ended before their branch went on."""

    def paused(self, call: Call) -> None:
        """Lease what the tree has of the branch."""
        if call.request.calls_tool:
            sequence = call.sequence
            self._leases.take(sequence.request_id, sequence.namespace, sequence.token_ids, self._clock() + self._ttl_s)

    def resumed(self, call: Call) -> None:
        """The sequence that goes on locks the path itself."""
        self._leases.release(call.sequence.request_id)

    def tick(self) -> None:
        """Let time end leases."""
        self._leases.expire(self._clock())
        self.num_lost += len(self._leases.take_lost())
