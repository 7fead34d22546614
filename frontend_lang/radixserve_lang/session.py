"""One running program: its channel, and where its events go."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from radixserve_lang.budget import Budget
from radixserve_lang.dispatch import Dispatch
from radixserve_lang.errors import (
    BranchDroppedError,
    BudgetExceededError,
    ClientClosedError,
    OpCancelledError,
    OpError,
    ProgramEndedError,
    ProgramError,
    ProgramRefusedError,
    ServerGoneError,
    TakenOverError,
)
from radixserve_lang.failures import is_echo, op_error
from radixserve_lang.records import BranchRecord, OpRecord
from radixserve_lang.usage import used
from radixserve_lang.verdicts import Verdicts
from radixserve_tokenizer.protocol import Admitted, Cancel, Delta, Done, Drop, Failed, Goodbye, LeaseLost, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve_lang.cell import Cell
    from radixserve_lang.client import Client
    from radixserve_lang.records import Build
    from radixserve_tokenizer.protocol import Event, FromClient, Priority

#: Deltas that may be on their way while somebody iterates; until then the server keeps them, and there are none to handle.
STREAM_CREDITS = 64
#: Credits go back in lots of this size.
CREDIT_LOT = 16


class Session:
    """Owned by the run that opened it; states and vars refer to it. Thread-safe."""

    def __init__(
        self,
        client: Client,
        *,
        api_key: str | None = None,
        seed: int | None = None,
        priority: Priority = "standard",
        cache_salt: str = "",
        budget: Budget | None = None,
        detached_ttl_s: float = 0.0,
        resume_key: str = "",
        on_root_value: Callable[[Cell], None] | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._records: list[OpRecord] = []
        self._over: ProgramError | None = None
        self._seen: set[int] = set()  # ids of errors that the records hold
        self._budget_seen = False
        self._num_streams = 0
        self._num_consumed = 0
        self._granted = False
        self._on_root_value = on_root_value
        self._budget = budget or Budget()
        self._began = time.monotonic()
        self._is_resumable = bool(resume_key)
        self.root = BranchRecord(number=0, path=())
        self.channel = client.open(
            self._on_event,
            api_key=api_key,
            seed=seed,
            priority=priority,
            cache_salt=cache_salt,
            credits=0,
            budget=None if budget is None else budget.on_the_wire(),
            detached_ttl_s=detached_ttl_s,
            resume_key=resume_key,
        )
        self._dispatch = Dispatch(self.channel)
        self.in_order = self._dispatch.in_order
        """Held while an op is made: what belongs together is numbered and sent together, whichever thread sends."""
        self.verdicts = Verdicts(self._dispatch)
        """Values that are judged before anything goes on from them."""

    # ---- what states do --------------------------------------------------------------------------------------------

    def check_usable(self, branch: BranchRecord, place: str) -> None:
        """Raise `BranchDroppedError` or `ProgramEndedError` when nothing can be done on the branch any more; `place` is what was to be done."""
        if isinstance(self._over, ProgramEndedError):
            raise self._over.at(place, "")
        if branch.closed:
            raise BranchDroppedError(
                f"{place}: this branch can't be used any more: {branch.closed}. Use it before that, or fork a new one."
            )

    def check_retries(self, place: str) -> None:
        """Raise ValueError where another process could not take up a program with an op that may be tried again.

        It would have to number the attempts alike; with several branches that depends on which value comes first.
        """
        if self._is_resumable and self.root.children:
            raise ValueError(
                f"{place}: a program with a resume_key can't use retries= or validate= after a fork; do it before the fork, "
                "or run it without a resume_key (detached_ttl_s alone is enough to outlive a lost connection)"
            )

    def submit(self, record: OpRecord, build: Build) -> None:
        """Send an op, or keep it until it may be sent; it leaves with what follows it. Raises ValueError for what can't be sent."""
        branch = record.branch
        with self._lock:
            self._records.append(record)
            branch.ops.append(record)
            over = self._over
        try:
            if over is None:
                self._dispatch.submit(record, build)
        except BaseException:
            with self._lock:
                self._records.remove(record)
                branch.ops.remove(record)
            raise
        if over is not None and record.cell is not None:
            record.cell.settle(over.at(record.place, ""))
        if branch is self.root and record.kind != "score" and record.cell is not None and self._on_root_value is not None:
            self._on_root_value(record.cell)

    def flush(self) -> None:
        """Before a read."""
        self.channel.flush()

    def _send(self, message: FromClient, *, flush: bool = False) -> None:
        # Ended by another thread meanwhile: every cell has heard of it.
        with contextlib.suppress(ClientClosedError):
            self.channel.send(message, flush=flush)

    def close_branches(self, branches: Iterable[BranchRecord], reason: str, *, drop: bool) -> None:
        """Cancel these branches and all that was forked from them, at once; with `drop` the server forgets them too."""
        closing = [branch for top in branches for branch in top.family() if not branch.closed]
        for branch in closing:
            branch.closed = reason
        if not closing:
            return
        # Told here first: the server's answer would name neither the line nor the block.
        for branch in closing:
            for record in branch.ops:
                if record.cell is not None:
                    error = OpCancelledError(record.kind, record.where, "cancelled", reason, status=499, partial=record.cell.text)
                    if record.cell.settle(error):
                        record.failure = error
        self._dispatch.forget(closing)
        if self._over is None:
            message = Drop if drop else Cancel
            numbers = tuple(branch.number for branch in closing if branch.fork is None or branch.fork.number >= 0)
            if numbers:
                self._send(message(program=self.channel.program, branches=numbers), flush=True)

    def end(self, reason: str) -> None:
        """The program is over: the server forgets it, and what has no value yet never will."""
        self._end(ProgramEndedError(reason))
        self.channel.close()

    def saw(self, error: BaseException | None) -> None:
        """The user has been told of this error, and so of its causes."""
        while error is not None:
            self._seen.add(id(error))
            if isinstance(error, BudgetExceededError):
                self._budget_seen = True
            self._dispatch.heal(error)
            error = error.__cause__

    def unread_failure(self) -> OpError | ProgramError | None:
        """The first failure that nobody has seen, of a branch that is still open."""
        with self._lock:
            records = list(self._records)
        for record in records:
            failure = record.failure if record.cell is None else record.cell.outcome
            if not isinstance(failure, OpError | ProgramError) or is_echo(failure):
                continue
            if isinstance(failure, BudgetExceededError) and self._budget_seen:
                continue
            if id(failure) not in self._seen and not record.branch.closed:
                return failure
        return None

    # ---- streams ---------------------------------------------------------------------------------------------------

    def stream_begins(self) -> None:
        """Somebody iterates: let deltas come."""
        with self._lock:
            self._num_streams += 1
            amount = self._num_consumed if self._granted else STREAM_CREDITS
            self._granted = True
            self._num_consumed = 0
        self._grant(amount)
        self.flush()

    def stream_ends(self) -> None:
        """One reader less."""
        with self._lock:
            self._num_streams -= 1

    def _delta(self, event: Delta) -> None:
        record = self._dispatch.find(event.op)
        if record is not None and record.cell is not None:
            record.cell.add(event.text)
        # Taken as consumed at once: the whole text is kept here anyway, whether its reader is slow or fast.
        with self._lock:
            self._num_consumed += 1
            if self._num_streams == 0 or self._num_consumed < CREDIT_LOT:
                return
            amount, self._num_consumed = self._num_consumed, 0
        self._grant(amount)

    def _grant(self, amount: int) -> None:
        if amount > 0 and self._over is None:
            with contextlib.suppress(ClientClosedError):
                self.channel.grant(amount)

    # ---- the I/O thread --------------------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case Delta():
                self._delta(event)
            case Done():
                record = self._dispatch.find(event.op)
                if record is not None and record.check is not None:
                    self.verdicts.hear(record, event)
                elif record is not None and record.cell is not None:
                    record.cell.settle(event)
            case Failed():
                self._failed(event)
            case Refused():
                self._end(ProgramRefusedError(event.status, event.code, event.message, event.retry_after_s))
            case Goodbye():
                self._end(ServerGoneError(event.message))
            case LeaseLost():
                self._lost(event.branch)
            case Admitted():
                self._began = time.monotonic()
            case _:
                raise TypeError(f"{type(event).__name__} is no event of a program")

    def _failed(self, event: Failed) -> None:
        record = self._dispatch.find(event.op)
        if record is not None:
            error = op_error(self._dispatch, record, event)
            if isinstance(error, BudgetExceededError):
                error.spent(self._budget, used(self.root, time.monotonic() - self._began))
            record.failure = error
            if record.cell is not None:
                record.cell.settle(error)
            self._dispatch.finish(record)
        elif event.code == "taken_over":
            self._end(TakenOverError("this run was taken up elsewhere with its resume_key, and goes on there"))
        elif event.code != "unknown_branch":  # dropping a branch whose fork failed is no failure of its own
            self._end(ProgramError(f"the server could not use a message of this program ({event.code}): {event.message}"))

    def _lost(self, number: int) -> None:
        """The lease that a branch took last."""
        for branch in self.root.family():
            if branch.number == number:
                taken = [record for record in branch.ops if record.kind == "lease"]
                for record in taken[-1:]:
                    record.is_lost = True

    def _end(self, error: ProgramError) -> None:
        with self._lock:
            if self._over is not None:
                return
            self._over = error
            records = list(self._records)
        for record in records:
            if record.cell is not None:
                record.cell.settle(error.at(record.place, record.cell.text))
