"""How ops end: done, failed, skipped or cancelled; what that does to the branch, to variables and to the client."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import upkeep
from radixserve_tokenizer.programs.branch import Branch, Poison, ValueOp
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.generation import Generation

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.programs.program import Program, Variable
    from radixserve_tokenizer.programs.services import Services, Task

logger = logging.getLogger(__name__)

CANCELLED = OpError("cancelled", code="cancelled", status=499)


class SkippedError(Exception):
    """An op refers to the value of an op that failed; `poison` is that op's."""

    def __init__(self, poison: Poison) -> None:
        super().__init__(poison.message)
        self.poison = poison


class Outcomes:
    """Settles ops. Every op with a value is answered exactly once: by `done`, or by one `Failed`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def done(self, task: Task, event: wire.Done) -> None:
        """The op has its value and the branch goes on."""
        branch = task.branch
        over = branch.program.budget.count_calls(len(event.calls), task.op)
        if over is not None:
            self.fail(branch, task.op, over)
            return
        self.release(task)
        branch.num_counted = len(branch.log)
        upkeep.settled(branch, task.op)
        upkeep.generated(branch, event.token_ids, event.value)
        branch.program.tell(event)
        variable = branch.program.variables[event.var]
        variable.text = event.value
        self._wake(branch, variable)

    def fail(self, branch: Branch, op: wire.Op, error: OpError) -> None:
        """The op failed: the branch is again what it was before, and skips what was sent after it."""
        partial = self._give_up(branch)
        self._go_back(branch, op)
        poison = Poison(op.op, error.message, error.status, error.param, error.retryable)
        self._poison(branch, poison)
        branch.program.tell(
            wire.Failed(
                program=op.program,
                op=op.op,
                code=error.code,
                message=error.message,
                var=op.var if isinstance(op, ValueOp) else -1,
                status=error.status,
                param=error.param,
                retryable=error.retryable,
                partial=partial,
            )
        )
        self._end_without_value(branch, op, poison)

    def _give_up(self, branch: Branch) -> str:
        """What the branch is busy with ends without a value; returns its text so far, of which a stream has been told all."""
        task = branch.task
        if task is None:
            return ""
        if isinstance(task, Generation) and not branch.dropped:
            branch.program.tell_rest(task)
        self.release(task)
        return task.partial

    def fail_unexpectedly(self, branch: Branch, op: wire.Op, error: Exception) -> None:
        """A bug of ours: this op alone pays for it."""
        logger.error("op %d of program %d failed unexpectedly", op.op, op.program, exc_info=error)
        message = f"internal error ({type(error).__name__}); the server's log has more"
        self.fail(branch, op, OpError(message, code="internal", status=500))

    def skip(self, branch: Branch, op: wire.Op, poison: Poison) -> None:
        """The op can't run because of an earlier one. Only ops with a value say so."""
        if branch.poison is None:
            self._go_back(branch, op)
            self._poison(branch, poison)
        if isinstance(op, ValueOp):
            branch.program.tell(
                wire.Failed(
                    program=op.program,
                    op=op.op,
                    code="skipped",
                    message=f"skipped: op {poison.op} failed: {poison.message}",
                    var=op.var,
                    status=poison.status,
                    param=poison.param,
                    retryable=poison.retryable,
                )
            )
        self._end_without_value(branch, op, poison)

    def cancel(self, branch: Branch, why: Callable[[wire.Op], OpError] = lambda op: CANCELLED) -> None:
        """End everything that the branch does or waits to do; the branch is as it was before the first of it."""
        ops: list[wire.Op] = [branch.task.op] if branch.task is not None else []
        ops.extend(branch.queue)
        branch.queue.clear()
        if not ops:
            return
        partial = self._give_up(branch)
        self._go_back(branch, ops[0])
        first = why(ops[0])
        poison = Poison(ops[0].op, first.message, first.status)
        self._poison(branch, poison)
        for op in ops:
            if isinstance(op, ValueOp):
                error = why(op)
                branch.program.tell(
                    wire.Failed(
                        program=op.program,
                        op=op.op,
                        code=error.code,
                        message=error.message,
                        var=op.var,
                        status=error.status,
                        partial=partial,
                    )
                )
            partial = ""
            self._end_without_value(branch, op, poison)

    def drop(self, branch: Branch) -> None:
        """Cancel and forget."""
        branch.dropped = True
        self.cancel(branch)
        program = branch.program
        program.branches.pop(branch.number, None)
        upkeep.dropped(branch)
        program.dropped.add(branch.number)
        self._services.leases.release(branch)
        self._services.link.drop({branch.runtime_id: branch.log})

    def end(self, program: Program) -> None:
        """Forget a program; nobody is told."""
        for branch in program.branches.values():
            if branch.task is not None:
                self.release(branch.task)
            self._services.leases.release(branch)
            branch.queue.clear()
            branch.dropped = True
        upkeep.ended(program)
        for op in list(program.reserved):
            program.give_back(op, self._services.clock())
        self._services.link.drop({branch.runtime_id: branch.log for branch in program.branches.values()})
        program.branches.clear()
        program.streams.clear()
        program.client.streaming.pop(program, None)
        self._services.retellings.stop(program)
        program.client.programs.pop(program.number, None)
        self.decided(program)
        self._services.budgets.forget(program)
        self._services.detached.forget(program)
        if program.is_admitted:
            self._services.admission.close(program.uid, program.tenant)

    def decided(self, program: Program) -> None:
        """It does not wait to be admitted or refused any more, if it did."""
        self._services.undecided.pop(program, None)
        if program in program.client.undecided:
            del program.client.undecided[program]
            self._services.admission.decided(program.tenant)

    def release(self, task: Task) -> None:
        """The branch is not busy with `task` any more; whoever works on it stops."""
        task.branch.task = None
        if isinstance(task, Generation):
            task.branch.program.streams.pop(task, None)
            task.branch.program.budget.ended(task)
        if task.undo is not None:
            task.undo()
            task.undo = None
        self.dequeue(task, first_token=False)
        self._services.slots.leave(task.ticket)
        if not task.ticket.num_unanswered:
            task.ticket.settle(None, self._services.clock())

    def dequeue(self, task: Task, *, first_token: bool) -> None:
        """The task waits for its first token no more."""
        if task.is_queued:
            task.is_queued = False
            self._services.admission.dequeue(task.ticket, self._services.clock(), first_token=first_token)

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _end_without_value(self, branch: Branch, op: wire.Op, poison: Poison) -> None:
        program = branch.program
        upkeep.not_run(branch, op)
        program.give_back(op.op, self._services.clock())
        if isinstance(op, ValueOp):
            variable = program.variables[op.var]
            variable.poison = poison
            self._wake(branch, variable)
        elif isinstance(op, wire.Fork):
            for number in range(op.first, op.first + op.count):
                child = program.branches.get(number)
                if child is not None and not child.born:
                    child.born = True
                    self._poison(child, poison)
                    self._services.runnable.append(child)

    def _wake(self, branch: Branch, variable: Variable) -> None:
        self._services.runnable.append(branch)
        self._services.runnable.extend(variable.waiters)
        variable.waiters.clear()

    @staticmethod
    def _poison(branch: Branch, poison: Poison) -> None:
        if branch.poison is None:
            branch.poison = poison

    @staticmethod
    def _go_back(branch: Branch, op: wire.Op) -> None:
        mark = branch.marks.get(op.op)
        if mark is None:
            branch.marks[op.op] = branch.mark()  # so that a rollback to this op heals the branch
        else:
            branch.restore(mark)
