"""Branches of one fork."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from radixserve_lang.session import Session
    from radixserve_lang.state import State


class Fork(Sequence["State"]):
    """The new states, in order. As a context manager it cancels and drops them on leaving, however it is left.

    A value that is done by then stays readable and can still be appended elsewhere; reading one that was not raises
    `OpCancelledError`.
    """

    def __init__(self, session: Session, states: Sequence[State]) -> None:
        self._session = session
        self._states = tuple(states)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[State]: ...
    def __getitem__(self, index: int | slice) -> State | Sequence[State]:
        return self._states[index]

    def __len__(self) -> int:
        return len(self._states)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        branches = [state._branch for state in self._states]  # pyright: ignore[reportPrivateUsage]
        self._session.close_branches(branches, "its fork block was left", drop=True)
