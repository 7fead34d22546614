"""Leases of branches: what is held in the runtime, for whom, and since when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.link import RuntimeLink
    from radixserve_tokenizer.programs.branch import Branch

MAX_LEASE_S = 3600.0


@dataclass(slots=True)
class _Lease:
    branch: Branch
    num_tokens: int
    since: float


class Leases:
    """Takes leases, ends them, and charges the tenant for the KV that they kept.

    A lease covers what the branch's log holds when it is taken. A lease of a branch that has one replaces it, and it ends
    with the branch's next generation, which holds the KV itself.
    """

    def __init__(self, link: RuntimeLink, clock: Callable[[], float]) -> None:
        self._link = link
        self._clock = clock
        self._leases: dict[int, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, branch: Branch, ttl_s: float) -> None:
        """Lease a branch. Raises `OpError`. Without a runtime there is no KV to keep: the lease is lost at once."""
        if not (math.isfinite(ttl_s) and 0 < ttl_s <= MAX_LEASE_S):
            raise OpError(f"ttl_s must be above 0 and at most {MAX_LEASE_S:g}, not {ttl_s}", param="ttl_s")
        self._end(branch.runtime_id)
        if not len(branch.log):
            self._link.release(branch.runtime_id)  # nothing to keep, whatever it held before
            return
        if not self._link.lease(branch.runtime_id, branch.log, ttl_s, branch.program.owner):
            self._tell(branch)
            return
        self._leases[branch.runtime_id] = _Lease(branch, len(branch.log), self._clock())

    def release(self, branch: Branch) -> None:
        """End a branch's lease, if it has one; also to be called before a branch is dropped."""
        if self._end(branch.runtime_id):
            self._link.release(branch.runtime_id)

    def revoke(self, branch: Branch) -> None:
        """End a branch's lease against its program's will, which is told."""
        if self._end(branch.runtime_id):
            self._link.release(branch.runtime_id)
            self._tell(branch)

    def used(self, branch: Branch) -> None:
        """A generation of this branch runs: the runtime has ended its lease without a word."""
        self._end(branch.runtime_id)

    def on_lost(self, branch_id: int) -> None:
        """The runtime keeps it no longer."""
        lease = self._leases.get(branch_id)
        if lease is not None:
            self._end(branch_id)
            self._tell(lease.branch)

    def on_connection_lost(self) -> None:
        """The runtime is gone, and all KV with it."""
        for branch_id in list(self._leases):
            self.on_lost(branch_id)

    def _end(self, branch_id: int) -> bool:
        lease = self._leases.pop(branch_id, None)
        if lease is None:
            return False
        now = self._clock()
        lease.branch.program.tenant.account.leased(lease.num_tokens * (now - lease.since), now)
        return True

    @staticmethod
    def _tell(branch: Branch) -> None:
        branch.program.tell(wire.LeaseLost(program=branch.program.number, branch=branch.number))
