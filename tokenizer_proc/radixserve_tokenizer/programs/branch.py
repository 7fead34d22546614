"""A branch: its token log, its text, and the ops that wait for their turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import upkeep
from radixserve_tokenizer.programs.log import TokenLog

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.log import LogMark
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.programs.seeds import BranchPath
    from radixserve_tokenizer.programs.services import Task
    from radixserve_tokenizer.programs.transcript import Transcript, TranscriptMark
    from radixserve_tokenizer.programs.uncached import Unshared

#: Ops whose value somebody may wait for.
ValueOp = wire.Gen | wire.Select | wire.Score


@dataclass(frozen=True, slots=True)
class Mark:
    """What a branch held before an op."""

    log: LogMark
    text: TranscriptMark
    num_kept_bytes: int


@dataclass(frozen=True, slots=True)
class Poison:
    """The op that failed, and why: what was sent after it on its branch is skipped."""

    op: int
    message: str
    status: int = 500
    param: str = ""
    retryable: bool = False


@dataclass(slots=True, eq=False)
class Branch:
    """One line of a program. `born` turns true when the fork that makes it is reached."""

    program: Program
    number: int
    """The client's number for it."""
    runtime_id: int
    path: BranchPath
    text: Transcript
    log: TokenLog = field(default_factory=TokenLog)
    born: bool = False
    queue: deque[wire.Op] = field(default_factory=deque[Any])
    task: Task | None = None
    poison: Poison | None = None
    marks: dict[int, Mark] = field(default_factory=dict[int, Mark])
    """By op of this branch: what it held before that op began."""
    generation_indices: dict[int, int] = field(default_factory=dict[int, int])
    """By queued op: its number among this branch's generations, for its seed."""
    num_generations: int = 0
    num_children: int = 0
    waits_at_gate: bool = False
    """The op at the head waits for the runtime's first `Ready`."""
    dropped: bool = False
    num_counted: int = 0
    """Ids at the log's begin that an earlier request of this program brought (programs/uncached.py)."""
    before_fork: Unshared | None = None
    num_kept_ids: int = 0
    """Of its log, how many ids are counted in `num_kept_bytes`, here or where it was forked."""
    num_kept_bytes: int = 0
    """What it holds and does not share (programs/upkeep.py)."""

    def mark(self) -> Mark:
        """What it holds now."""
        return Mark(self.log.mark(), self.text.mark(), self.num_kept_bytes)

    def restore(self, mark: Mark) -> None:
        """Go back to what it held then."""
        self.log.cut(mark.log)
        self.text.restore(mark.text)
        upkeep.restored(self, mark.num_kept_bytes)

    def next_child_path(self) -> BranchPath:
        """The path of the next child; children are counted over all forks of this branch."""
        self.num_children += 1
        return (*self.path, self.num_children - 1)
