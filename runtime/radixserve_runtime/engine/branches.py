"""The ids of open branches, so that a message need carry only what is new.

Everything here can be rebuilt from the tokenizer process's logs; a base that does not fit is answered with a request
for the whole log, never with a guess.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from radixserve_runtime.protocol import log_hash

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from radixserve_runtime.protocol import Base


class MissingBaseError(LookupError):
    """The branch is unknown here, shorter than the base, or holds other ids."""


class _Run:
    """A frozen run of ids, with what comes before it."""

    __slots__ = ("before", "ids", "start")

    def __init__(self, before: _Run | None, start: int, ids: tuple[int, ...]) -> None:
        self.before = before
        self.start = start
        self.ids = ids


class _Log:
    """Ids of one branch. Forks share what they have in common: a branch that never runs costs next to nothing."""

    __slots__ = ("_shared", "_tail", "_tail_start", "hash")

    def __init__(self) -> None:
        self._shared: _Run | None = None
        self._tail: list[int] = []
        self._tail_start = 0
        self.hash = 0

    def __len__(self) -> int:
        return self._tail_start + len(self._tail)

    def fork(self) -> _Log:
        if self._tail:
            self._shared = _Run(self._shared, self._tail_start, tuple(self._tail))
            self._tail_start += len(self._tail)
            self._tail = []
        child = _Log()
        child._shared, child._tail_start, child.hash = self._shared, self._tail_start, self.hash
        return child

    def first(self, length: int) -> list[int]:
        runs: list[Seq[int]] = [self._tail]
        run = self._shared
        while run is not None:
            runs.append(run.ids)
            run = run.before
        ids = list(chain.from_iterable(reversed(runs)))
        return ids if length == len(ids) else ids[:length]

    def cut(self, length: int, hash_there: int) -> None:
        while length < self._tail_start:
            run = self._shared
            assert run is not None
            self._shared, self._tail, self._tail_start = run.before, list(run.ids), run.start
        del self._tail[length - self._tail_start :]
        self.hash = hash_there

    def extend(self, token_ids: Seq[int]) -> None:
        self._tail.extend(token_ids)
        self.hash = log_hash(token_ids, self.hash)


class BranchTable:
    """Token logs by branch id. A generation's own output is not in it until a later base says so."""

    def __init__(self) -> None:
        self._logs: dict[int, _Log] = {}

    def __len__(self) -> int:
        return len(self._logs)

    def __contains__(self, branch_id: int) -> bool:
        return branch_id in self._logs

    def apply(self, branch_id: int, base: Base) -> list[int]:
        """Bring a branch to `base` and return a copy of its ids; raises `MissingBaseError` and changes nothing if it can't."""
        log = self._bring(branch_id, base)
        return log.first(len(log))

    def fork(self, parent_id: int, child_ids: tuple[int, ...], base: Base) -> None:
        """Start children with the parent's log; raises `MissingBaseError`."""
        parent = self._bring(parent_id, base)
        for child_id in child_ids:
            self._logs[child_id] = parent.fork()

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
            if found is None or len(found) < base.length:
                raise MissingBaseError(branch_id)
            cut = base.length < len(found)
            held = log_hash(found.first(base.length)) if cut else found.hash
            if held != base.hash:
                raise MissingBaseError(branch_id)
            if cut:
                found.cut(base.length, held)
            log = found
        log.extend(base.new_ids)
        return log
