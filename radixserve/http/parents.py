"""Which program was started by which, as far as requests have told: a bounded memory for each tenant."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Parents:
    """The program at the root of each program that has one. Those of a tenant that were named longest ago are forgotten first."""

    def __init__(self, max_per_tenant: int, max_all: int) -> None:
        self._max_per_tenant = max_per_tenant
        self._max_all = max_all
        self._roots: dict[str, OrderedDict[str, str]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def root(self, tenant: str, program_id: str, parent: str) -> str:
        """The program at the root: a program and all that it started count as one. Either name may be empty, not both."""
        own: Mapping[str, str] = self._roots.get(tenant, {})
        above = parent or program_id
        root = own.get(above, above)
        if program_id and root != program_id:
            self._note(tenant, program_id, root)
        return root

    def _note(self, tenant: str, program_id: str, root: str) -> None:
        own = self._roots.setdefault(tenant, OrderedDict())
        self._size += program_id not in own
        own[program_id] = root
        own.move_to_end(program_id)
        if len(own) > self._max_per_tenant:
            self._forget_one(tenant)
        if self._size > self._max_all:
            self._forget_one(max(self._roots, key=lambda one: len(self._roots[one])))

    def _forget_one(self, tenant: str) -> None:
        own = self._roots[tenant]
        own.popitem(last=False)
        self._size -= 1
        if not own:
            del self._roots[tenant]
