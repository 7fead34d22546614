"""The ids of open branches, so that a message need carry only what is new.

Everything here can be rebuilt from the tokenizer process's logs; a base that does not fit is answered with a request
for the whole log, never with a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_runtime.protocol import log_hash

if TYPE_CHECKING:
    from radixserve_runtime.protocol import Base


class MissingBaseError(LookupError):
    """The branch is unknown here, shorter than the base, or holds other ids."""


@dataclass(slots=True)
class _Log:
    token_ids: list[int] = field(default_factory=list[int])
    hash: int = 0


class BranchTable:
    """Token logs by branch id. A generation's own output is not in it until a later base says so."""

    def __init__(self) -> None:
        self._logs: dict[int, _Log] = {}

    def __len__(self) -> int:
        return len(self._logs)

    def apply(self, branch_id: int, base: Base) -> list[int]:
        """Bring a branch to `base` and return a copy of its ids; raises `MissingBaseError` and changes nothing if it can't."""
        log = self._bring(branch_id, base)
        return log.token_ids.copy()

    def fork(self, parent_id: int, child_ids: tuple[int, ...], base: Base) -> None:
        """Start children with the parent's log; raises `MissingBaseError`."""
        parent = self._bring(parent_id, base)
        for child_id in child_ids:
            self._logs[child_id] = _Log(parent.token_ids.copy(), parent.hash)

    def drop(self, branch_ids: tuple[int, ...]) -> None:
        """Forget branches; unknown ids are ignored."""
        for branch_id in branch_ids:
            self._logs.pop(branch_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._logs.clear()

    def _bring(self, branch_id: int, base: Base) -> _Log:
        if base.length == 0:
            log = self._logs[branch_id] = _Log()
        else:
            found = self._logs.get(branch_id)
            if found is None or len(found.token_ids) < base.length:
                raise MissingBaseError(branch_id)
            cut = base.length < len(found.token_ids)
            held = log_hash(found.token_ids[: base.length]) if cut else found.hash
            if held != base.hash:
                raise MissingBaseError(branch_id)
            if cut:
                del found.token_ids[base.length :]
                found.hash = held
            log = found
        log.token_ids.extend(base.new_ids)
        log.hash = log_hash(base.new_ids, log.hash)
        return log
