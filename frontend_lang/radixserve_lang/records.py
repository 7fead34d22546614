"""What the client remembers of a program: its branches and ops. Reads, errors and the trace are made from it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from radixserve_lang.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from radixserve_lang.cell import Cell
    from radixserve_lang.errors import OpError
    from radixserve_lang.var import Var
    from radixserve_lang.verdicts import Check
    from radixserve_tokenizer.protocol import FromClient, ToolSpec

    OpKind: TypeAlias = Literal["append", "gen", "select", "score", "fork", "tools", "lease", "release"]
    #: Makes an op's message when it is sent: only then are the numbers known, its own and those of the values it refers to.
    Build: TypeAlias = Callable[[], FromClient]


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
    tools: tuple[ToolSpec, ...] = ()
    """What the model may call after all that has been written so far."""
    held: deque[tuple[OpRecord, Build]] = field(default_factory=deque["tuple[OpRecord, Build]"])
    """Ops that have not been sent yet, in order."""
    judged: OpRecord | None = None
    """The generation whose verdict everything after it waits for."""
    turns: Turns = field(default_factory=Turns)
    """Of tool calls that run at once."""
    poison: OpError | None = None
    """Why what comes next on it does not run. Only for what this client decides; the server keeps its own."""

    def family(self) -> list[BranchRecord]:
        """Itself and all that was forked from it."""
        found: list[BranchRecord] = [self]
        for branch in found:
            found += branch.children
        return found


@dataclass(slots=True, eq=False)
class OpRecord:
    """One op. `cell` is its value for gen, select and score; `failure` an error of an op without one."""

    kind: OpKind
    where: str
    branch: BranchRecord
    number: int = -1
    """As the server knows it; -1 until it is sent. A generation that is tried again gets a new one."""
    var: int = -1
    """The number of its value, in the same way."""
    role: str = ""
    parts: tuple[str | Var[Any], ...] = ()
    forks: tuple[BranchRecord, ...] = ()
    detail: str = ""
    """What the trace says of an op that is neither text nor a value."""
    cell: Cell | None = None
    check: Check | None = None
    """How its value is judged before anything goes on from it."""
    failure: OpError | None = None
    is_final: bool = False
    """Others can refer to it: it is sent and accepted, or it has failed."""
    waiters: list[BranchRecord] = field(default_factory=list["BranchRecord"])
    """Branches that hold ops back until it is final."""
    is_lost: bool = False
    """A lease that has ended before its time."""
    sent: FromClient | None = None
    """As it went over the wire (the last attempt, of one that is tried again)."""
    began_ns: int = field(default_factory=time.time_ns)
    """When the program made it, since the epoch."""

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.kind} at {self.where}"
