"""What the client remembers of a program: its branches and ops. Reads, errors and the trace are made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing import TypeAlias

    from radixserve_lang.cell import Cell
    from radixserve_lang.errors import OpError
    from radixserve_lang.var import Var

    OpKind: TypeAlias = Literal["append", "gen", "select", "score", "fork"]


@dataclass(slots=True, eq=False)
class BranchRecord:
    """One branch. `closed` says why it can't be used any more; empty while it can."""

    number: int
    path: tuple[int, ...]
    fork: OpRecord | None = None
    """The op that made it; None for the root."""
    ops: list[OpRecord] = field(default_factory=list["OpRecord"])
    children: list[BranchRecord] = field(default_factory=list["BranchRecord"])
    closed: str = ""

    def family(self) -> list[BranchRecord]:
        """Itself and all that was forked from it."""
        found: list[BranchRecord] = [self]
        for branch in found:
            found += branch.children
        return found


@dataclass(slots=True, eq=False)
class OpRecord:
    """One op. `cell` is its value for gen, select and score; `failure` an error of an op without one."""

    number: int
    kind: OpKind
    where: str
    branch: BranchRecord
    role: str = ""
    parts: tuple[str | Var[Any], ...] = ()
    forks: tuple[BranchRecord, ...] = ()
    cell: Cell | None = None
    failure: OpError | None = None

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.kind} at {self.where}"
