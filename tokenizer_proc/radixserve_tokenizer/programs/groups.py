"""Programs of one tenant in one group are one program to the scheduler: a bounded memory of what number each group has."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_GROUP_CHARS = 256
#: Groups that are remembered for each tenant; beyond that the one used longest ago is forgotten, and begins anew.
_MAX_GROUPS = 1024


class Groups:
    """Numbers of groups, by tenant: one tenant's groups can neither reach nor push out another's."""

    def __init__(self, next_id: Callable[[], int]) -> None:
        self._next_id = next_id
        self._groups: dict[str, OrderedDict[str, int]] = {}

    def number_of(self, tenant: str, group: str) -> int:
        """The number by which the scheduler knows a group; without one, a new number."""
        if not group:
            return self._next_id()
        groups = self._groups.setdefault(tenant, OrderedDict())
        number = groups.pop(group, 0) or self._next_id()
        groups[group] = number
        if len(groups) > _MAX_GROUPS:
            groups.popitem(last=False)
        return number
