"""Which op may leave now: numbers are given as ops are sent, and what follows a value that is still judged is held back."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

from radixserve_lang.errors import ClientClosedError, OpSkippedError, RadixServeError
from radixserve_lang.frames import encode_message
from radixserve_tokenizer.protocol import Drop, Rollback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_lang.channel import Channel
    from radixserve_lang.errors import OpError
    from radixserve_lang.records import BranchRecord, Build, OpRecord
    from radixserve_tokenizer.protocol import FromClient


class Dispatch:
    """Sends a program's ops. An op is held while its branch is not there yet, waits for a verdict, or refers to a value that does.

    Everything runs under `in_order`: the server takes numbers only in order, whichever thread sends.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.in_order = threading.RLock()
        self._by_number: dict[int, OpRecord] = {}
        self._refused: dict[int, OpRecord] = {}  # by id of the error that the record holds

    def find(self, number: int) -> OpRecord | None:
        """The op that has (or had) this number."""
        return self._by_number.get(number)

    def submit(self, record: OpRecord, build: Build) -> None:
        """Send an op, or keep it until it may be sent. Raises ValueError for what can't be sent, and what `build` raises."""
        with self.in_order:
            branch = record.branch
            cause = self._spoiled(record)
            if cause is not None:
                self._advance(self._skip(record, cause))
                return
            blocker = self._blocker(record)
            if blocker is None and not branch.held:
                self._advance(self._send(record, build))
                return
            encode_message(build())  # so that an error shows at the line that made it
            if blocker is not None and not branch.held:
                blocker.waiters.append(branch)
            branch.held.append((record, build))

    def finish(self, record: OpRecord) -> None:
        """The op's number stands, or it has failed: what waited for it may go on."""
        with self.in_order:
            self._advance(self._finalize(record))
            self.channel.flush()

    def again(self, record: OpRecord, build: Build) -> None:
        """Go back to before the op, and do it once more under new numbers."""
        with self.in_order:
            self._roll_back(record)
            self._send(record, build)
            self.channel.flush()

    def give_up(self, record: OpRecord, error: OpError) -> None:
        """Go back to before the op; what was written after it does not run."""
        with self.in_order:
            self._roll_back(record)
            record.failure = record.branch.poison = error
            self._refused[id(error)] = record
            self.finish(record)

    def heal(self, error: BaseException) -> None:
        """The program has been told of this error: where a value was refused for good, its branch may go on from before it."""
        record = self._refused.pop(id(error), None)
        if record is not None and record.check is not None:
            with self.in_order:
                record.branch.poison = None
                record.branch.tools = record.check.tools

    def forget(self, branches: Iterable[BranchRecord]) -> None:
        """These branches are closed: what they held is never sent."""
        with self.in_order:
            closed = list(branches)
            for branch in closed:
                branch.held.clear()
                branch.judged = None
            for record in [record for branch in closed for record in branch.ops]:
                self._advance(self._finalize(record))

    # ---- under the lock --------------------------------------------------------------------------------------------

    def _advance(self, branches: Iterable[BranchRecord]) -> None:
        """Send what these branches hold, and what that sets free."""
        work = deque(branches)
        while work:
            branch = work.popleft()
            while branch.held:
                record, build = branch.held[0]
                blocker = self._blocker(record)
                if blocker is not None:
                    blocker.waiters.append(branch)
                    break
                branch.held.popleft()
                work.extend(self._send_or_skip(record, build))

    def _send_or_skip(self, record: OpRecord, build: Build) -> list[BranchRecord]:
        """Of an op that was held: there is no line of the program any more at which it could raise."""
        cause: Exception | None = self._spoiled(record)
        if cause is None:
            try:
                return self._send(record, build)
            except (RadixServeError, ValueError) as error:
                cause = error
        return self._skip(record, cause)

    def _blocker(self, record: OpRecord) -> OpRecord | None:
        """The op that has to be final first."""
        branch = record.branch
        if branch.fork is not None and not branch.fork.is_final:
            return branch.fork
        if branch.judged is not None:
            return branch.judged
        for part in record.parts:
            if not isinstance(part, str) and not part.record.is_final:
                return part.record
        return None

    @staticmethod
    def _spoiled(record: OpRecord) -> RadixServeError | None:
        """Why the op can't run, where the server would not know: its branch's poison, or that of a value in it."""
        if record.branch.poison is not None:
            return record.branch.poison
        for part in record.parts:
            if isinstance(part, str) or part.record.failure is None or part.record.branch.closed:
                continue
            if part.record.number < 0 or part.record.check is not None:
                return part.record.failure
        return None

    def _send(self, record: OpRecord, build: Build) -> list[BranchRecord]:
        """Send it under new numbers; the branches that this sets free."""
        record.number = self.channel.next_op()
        if record.cell is not None:
            record.var = self.channel.next_var()
        self._by_number[record.number] = record
        try:
            message = record.sent = build()
            with contextlib.suppress(ClientClosedError):  # ended by another thread meanwhile: every cell has heard of it
                self.channel.send(message, *self._drops(record))
        except BaseException:
            del self._by_number[record.number]
            record.number = record.var = -1
            raise
        if record.check is not None:
            record.branch.judged = record
            return []
        return self._finalize(record)

    def _drops(self, record: OpRecord) -> list[FromClient]:
        """A fork that was held until its branches were closed still counts, for the paths of later ones."""
        closed = tuple(branch.number for branch in record.forks if branch.closed)
        return [Drop(program=self.channel.program, branches=closed)] if closed else []

    @staticmethod
    def _finalize(record: OpRecord) -> list[BranchRecord]:
        record.is_final = True
        if record.branch.judged is record:
            record.branch.judged = None
        free, record.waiters = record.waiters, []
        return [record.branch, *free]

    def _skip(self, record: OpRecord, cause: Exception) -> list[BranchRecord]:
        error = skipped(record, cause)
        record.failure = error
        if record.cell is not None:
            record.cell.settle(error)
        for branch in record.forks:
            branch.poison = error
        if record.branch.poison is None:
            record.branch.poison = error
        return self._finalize(record)

    def _roll_back(self, record: OpRecord) -> None:
        number = self.channel.next_op()
        self._by_number[number] = record  # should it fail, the generation has
        message = Rollback(program=self.channel.program, op=number, branch=record.branch.number, to_op=record.number)
        with contextlib.suppress(ClientClosedError):
            self.channel.send(message)


def skipped(record: OpRecord, cause: BaseException) -> OpSkippedError:
    """The error of an op that did not run because of `cause`."""
    while isinstance(cause, OpSkippedError) and cause.__cause__ is not None:
        cause = cause.__cause__
    status = getattr(cause, "status", 500)
    error = OpSkippedError(record.kind, record.where, "skipped", str(cause), status=status)
    error.__cause__ = cause
    return error
