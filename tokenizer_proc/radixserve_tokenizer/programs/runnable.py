"""Branches whose next op may be able to begin: each tenant in turn, so that nobody's many branches hold up another's one."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_tokenizer.programs.branch import Branch
    from radixserve_tokenizer.tenants.identity import Tenant


class Runnable:
    """A queue for each tenant. A branch may be in it more than once."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: OrderedDict[Tenant, deque[Branch]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def append(self, branch: Branch) -> None:
        """Behind what else its tenant has."""
        tenant = branch.program.tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = deque()
        queue.append(branch)

    def extend(self, branches: Iterable[Branch]) -> None:
        """Append each."""
        for branch in branches:
            self.append(branch)

    def popleft(self) -> Branch:
        """The first branch of the tenant whose turn it is. Raises `KeyError` if there is none."""
        tenant, queue = self._queues.popitem(last=False)
        branch = queue.popleft()
        if queue:
            self._queues[tenant] = queue
        return branch
