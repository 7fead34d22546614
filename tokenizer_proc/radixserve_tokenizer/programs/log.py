"""The authoritative token log of a branch: forks share what they have in common, and its hash is kept as it grows."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from radixserve_runtime.protocol import log_hash

if TYPE_CHECKING:
    from collections.abc import Sequence


class LogMark(NamedTuple):
    """A position in a log: its first `length` ids, whose hash is `hash`; `version` counts the log's rewrites before it."""

    length: int
    hash: int
    version: int = 0


EMPTY_MARK = LogMark(0, 0)


class _Shared:
    """A frozen run of ids, with what comes before it."""

    __slots__ = ("before", "ids", "start")

    def __init__(self, before: _Shared | None, start: int, ids: array[int]) -> None:
        self.before = before
        self.start = start
        self.ids = ids


class TokenLog:
    """Token ids that grow at the end and are cut back to marks. A fork costs what was added since the last one.

    `known` is the part that the runtime has been told of under this log's number, in its life number `known_epoch`;
    cutting below it lowers it.
    """

    __slots__ = ("_hash", "_length", "_rewritten", "_shared", "_tail", "_tail_start", "known", "known_epoch")

    def __init__(self) -> None:
        self._shared: _Shared | None = None
        self._tail: array[int] = array("I")
        self._tail_start = 0
        self._length = 0
        self._hash = 0
        self._rewritten: list[tuple[int, TokenLog]] = []  # for each rewrite: where it began, and the log before it
        self.known = EMPTY_MARK
        self.known_epoch = 0

    def __len__(self) -> int:
        return self._length

    def mark(self) -> LogMark:
        """Where the log stands now."""
        return LogMark(self._length, self._hash, len(self._rewritten))

    def mark_at(self, length: int) -> LogMark:
        """The mark of its first `length` ids."""
        if length == self._length:
            return self.mark()
        return LogMark(length, log_hash(self.ids_from(0)[:length]), len(self._rewritten))

    def append(self, token_ids: Sequence[int]) -> None:
        """Add ids at the end."""
        if token_ids:
            self._tail.extend(token_ids)
            self._length += len(token_ids)
            self._hash = log_hash(token_ids, self._hash)

    def rewrite(self, keep: int, token_ids: Sequence[int]) -> None:
        """Replace what comes after the first `keep` ids. Marks taken before stay good: the old ids are kept for them."""
        if keep < self._length:
            self._rewritten.append((keep, self.fork()))
            self._truncate(self.mark_at(keep))
        self.append(token_ids)

    def cut(self, mark: LogMark) -> None:
        """Forget what came after `mark`, which must have been taken from this log."""
        while len(self._rewritten) > mark.version:
            keep, before = self._rewritten.pop()
            self._shared, self._tail, self._tail_start = before._shared, before._tail[:], before._tail_start
            self._length, self._hash = before._length, before._hash
            if self.known.length > keep:
                self.known = self.mark_at(keep)
        self._truncate(mark)

    def _truncate(self, mark: LogMark) -> None:
        assert mark.length <= self._length, "a mark from beyond the end"
        while mark.length < self._tail_start:
            shared = self._shared
            assert shared is not None
            self._shared, self._tail, self._tail_start = shared.before, shared.ids[:], shared.start
        del self._tail[mark.length - self._tail_start :]
        self._length, self._hash = mark.length, mark.hash
        if self.known.length > mark.length:
            self.known = mark

    def fork(self) -> TokenLog:
        """Another log with the same ids; neither sees what the other does from here on. The runtime knows nothing of it yet."""
        if self._tail:
            self._shared = _Shared(self._shared, self._tail_start, self._tail)
            self._tail = array("I")
            self._tail_start = self._length
        child = TokenLog()
        child._shared, child._tail_start = self._shared, self._tail_start
        child._length, child._hash = self._length, self._hash
        return child

    def ids_from(self, start: int) -> tuple[int, ...]:
        """Ids at positions `start` and after."""
        if start >= self._tail_start:
            return tuple(self._tail[start - self._tail_start :])
        runs = [self._tail]
        shared = self._shared
        while shared is not None and start < shared.start + len(shared.ids):
            runs.append(shared.ids if start <= shared.start else shared.ids[start - shared.start :])
            shared = shared.before
        return tuple(token_id for run in reversed(runs) for token_id in run)
