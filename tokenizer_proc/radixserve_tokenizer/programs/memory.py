"""What the assistant said, and in which tokens: so that a conversation that comes back as text goes on from the same ids.

Text that a model drew is seldom tokenized the way the model drew it. A client that sends its whole conversation with every request
would lose the cached prefix at the first such turn. So the ids of finished turns are remembered, by tenant and cache salt and by
all that stood before the turn, and an assistant message with the same words at the same place gets them back.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from radixserve_runtime.protocol import Owner
    from radixserve_tokenizer.protocol import ToolCall

#: What an entry costs beside its ids, in ids.
_OVERHEAD = 64


class Turn(NamedTuple):
    """What an assistant's message says, whichever way it was written."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Names, and arguments as JSON in one spelling. Ids of calls are left out: no two are alike."""


def said_turn(text: str, reasoning: str, calls: Iterable[ToolCall]) -> Turn:
    """The turn that was generated."""
    return Turn(text, reasoning, tuple((call.name, _one_spelling(call.arguments)) for call in calls))


def told_turn(text: str, fields: Mapping[str, Any]) -> Turn | None:
    """The turn that a client tells of; None for a message with other fields than those of a turn."""
    if fields.keys() - {"tool_calls", "reasoning_content"}:
        return None
    calls: list[tuple[str, str]] = []
    told = fields.get("tool_calls") or []
    for call in told if isinstance(told, list | tuple) else [None]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        calls.append((function["name"], _one_spelling(function.get("arguments", "{}"))))
    reasoning = fields.get("reasoning_content") or ""
    return Turn(text, reasoning, tuple(calls)) if isinstance(reasoning, str) else None


class TurnMemory:
    """Ids of finished turns, within a bound: who holds most loses what it used longest ago. No tenant finds another's."""

    def __init__(self, max_ids: int) -> None:
        """`max_ids`: ids in all, each entry counted with an overhead; 0 remembers nothing."""
        self._max_ids = max_ids
        self._by_tenant: dict[str, OrderedDict[bytes, array[int]]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0

    @property
    def num_ids(self) -> int:
        """What is held, with overheads."""
        return self._size

    def note(self, owner: Owner, place: bytes, turn: Turn, ids: Sequence[int]) -> None:
        """Remember that `turn`, said at `place` (programs/places.py), is `ids`."""
        cost = len(ids) + _OVERHEAD
        if not ids or cost > self._max_ids:
            return
        own = self._by_tenant.setdefault(owner.tenant, OrderedDict())
        key = _key(owner, place, turn)
        before = own.pop(key, None)
        if before is not None:
            self._grow(owner.tenant, -len(before) - _OVERHEAD)
        own[key] = array("I", ids)
        self._grow(owner.tenant, cost)
        while self._size > self._max_ids:
            self._forget_one()

    def recall(self, owner: Owner, place: bytes, turn: Turn) -> tuple[int, ...]:
        """The ids of a turn that was said there; none if it is not known."""
        own = self._by_tenant.get(owner.tenant)
        if own is None:
            return ()
        key = _key(owner, place, turn)
        ids = own.get(key)
        if ids is None:
            return ()
        own.move_to_end(key)
        return tuple(ids)

    def _forget_one(self) -> None:
        tenant = max(self._sizes, key=lambda name: self._sizes[name])
        _, ids = self._by_tenant[tenant].popitem(last=False)
        self._grow(tenant, -len(ids) - _OVERHEAD)

    def _grow(self, tenant: str, amount: int) -> None:
        self._size += amount
        self._sizes[tenant] = self._sizes.get(tenant, 0) + amount
        if not self._sizes[tenant]:
            del self._sizes[tenant]


def _key(owner: Owner, place: bytes, turn: Turn) -> bytes:
    told = json.dumps([owner.cache_salt, place.hex(), *turn], ensure_ascii=True)
    return hashlib.blake2b(told.encode(), digest_size=16).digest()


def _one_spelling(arguments: Any) -> str:
    """Arguments, as JSON text or as an object, in one spelling; what is no JSON stays as it is."""
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        return str(arguments)
