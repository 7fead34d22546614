"""A lease of a branch's KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from radixserve_lang.records import OpRecord


class Lease:
    """What `s.lease` returns. As a context manager it ends the lease on leaving."""

    def __init__(self, release: Callable[[], None], record: OpRecord) -> None:
        self._release = release
        self._record = record

    @property
    def is_lost(self) -> bool:
        """Whether the engine has said that it ended before its time, or by it."""
        return self._record.is_lost

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._record.branch.closed:
            self._release()
