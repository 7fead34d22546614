"""Carries out ops: those of one branch in order, branches side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import uncached, upkeep
from radixserve_tokenizer.programs.beginning import Beginnings
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.limits import check_room
from radixserve_tokenizer.programs.memory import told_turn
from radixserve_tokenizer.programs.outcomes import Outcomes, SkippedError
from radixserve_tokenizer.programs.sampling import check_token_id
from radixserve_tokenizer.text.errors import InvalidTextError, TemplateError
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.toolset import read_tools

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.branch import Branch, Poison
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.programs.services import Services
    from radixserve_tokenizer.programs.tasks import Tasks


#: What makes prompts: carried out before a program is admitted, so that it is known how long they are.
_BEFORE_ADMISSION = wire.Append | wire.Tools | wire.Fork | wire.Rollback


class Executor:
    """Begins ops as soon as what they need is there."""

    def __init__(self, services: Services, outcomes: Outcomes, tasks: Tasks) -> None:
        self._services = services
        self._outcomes = outcomes
        self._beginnings = Beginnings(services, outcomes, tasks)

    def run(self, deadline: float) -> None:
        """Begin whatever can begin now, until the clock says `deadline`; the rest stays runnable, other tenants and branches first."""
        runnable = self._services.runnable
        while runnable and self._services.clock() <= deadline:
            self._advance(runnable.popleft(), deadline)

    def open_gate(self) -> None:
        """The model is known now."""
        gated, self._services.gated = self._services.gated, []
        for branch in gated:
            branch.waits_at_gate = False
        self._services.runnable.extend(gated)

    def _advance(self, branch: Branch, deadline: float) -> None:
        while branch.queue and branch.task is None and branch.born and not branch.dropped:
            if self._services.clock() > deadline:
                self._services.runnable.append(branch)
                return
            op = branch.queue[0]
            over = branch.program.budget.refuses(op) if branch.program.is_admitted else None
            if over is not None:
                branch.queue.popleft()
                self._outcomes.fail(branch, op, over)
            elif branch.poison is not None and not _heals(branch, branch.poison, op):
                branch.queue.popleft()
                self._outcomes.skip(branch, op, branch.poison)
            elif not branch.program.is_admitted and not isinstance(op, _BEFORE_ADMISSION):
                return
            elif self._attempt(branch, op):
                branch.queue.popleft()
            else:
                return

    def _attempt(self, branch: Branch, op: wire.Op) -> bool:
        """Begin an op; False if it has to wait at the head of its branch. One that fails has been settled."""
        if op.op not in branch.marks:
            branch.marks[op.op] = branch.mark()
        try:
            return self._begin(branch, op)
        except OpError as error:
            self._outcomes.fail(branch, op, error)
        except (TemplateError, InvalidTextError, ToolError) as error:
            self._outcomes.fail(branch, op, OpError(error.message, code="invalid_value", param=error.param))
        except SkippedError as error:
            self._outcomes.skip(branch, op, error.poison)
        except Exception as error:
            self._outcomes.fail_unexpectedly(branch, op, error)
        return True

    def _begin(self, branch: Branch, op: wire.Op) -> bool:
        match op:
            case wire.Append():
                return self._append(branch, op)
            case wire.Gen():
                return self._beginnings.begin_generation(branch, op)
            case wire.Select() | wire.Score():
                return self._beginnings.begin_scoring(branch, op)
            case wire.Fork():
                self._fork(branch, op)
            case wire.Rollback():
                self._rollback(branch, op)
            case wire.Lease():
                branch.text.render()  # what is said is kept, too
                self._services.leases.take(branch, op.ttl_s)
            case wire.Release():
                self._services.leases.release(branch)
            case wire.Tools():
                branch.text.set_tools(read_tools(op.tools))
        upkeep.settled(branch, op)
        return True

    # ---- ops without a value --------------------------------------------------------------------------------------

    def _append(self, branch: Branch, op: wire.Append) -> bool:
        if not self._have_values(branch, op):
            return False
        model = self._beginnings.model(branch)
        if model is None:
            return False
        check_room(branch, op, model.max_context, self._services.text.tokenizer.longest_token)
        program = branch.program
        values = [self._text_of(program, part, op) for part in op.parts if isinstance(part, wire.VarRef)]
        num_value_bytes = upkeep.check_values(program, values) if values else 0
        if op.role:
            self._message(branch, op)
        elif op.fields:
            raise OpError("fields belong to a message: give a role", param="fields")
        else:
            for part in op.parts:
                if isinstance(part, wire.TokenIds):
                    for token_id in part.ids:
                        check_token_id(token_id, self._services.text.tokenizer.vocab_size, "ids")
                    branch.text.add_ids(part.ids)
                else:
                    branch.text.add_text(self._text_of(program, part, op))
        upkeep.settled(branch, op)
        upkeep.grew(branch, num_value_bytes)
        return True

    def _message(self, branch: Branch, op: wire.Append) -> None:
        texts = [self._text_of(branch.program, part, op) for part in op.parts]
        turn = told_turn("".join(texts), op.fields) if op.role == "assistant" else None
        place = branch.text.next_turn_place if turn is not None else None
        ids = self._services.memory.recall(branch.program.owner, place, turn) if turn is not None and place is not None else ()
        branch.text.add_message(op.role, texts, op.fields, turn=turn, ids=ids)

    def _have_values(self, branch: Branch, op: wire.Append) -> bool:
        """Whether all referred values exist; else the branch will be woken. Raises `SkippedError` if one never will."""
        for part in op.parts:
            if isinstance(part, wire.VarRef):
                variable = branch.program.variables.get(part.var)
                if variable is None:
                    raise OpError(
                        f"variable {part.var} is not known: its op must be sent first", code="unknown_variable", param="var"
                    )
                if variable.poison is not None:
                    raise SkippedError(variable.poison)
                if variable.text is None:
                    variable.waiters.append(branch)
                    return False
        return True

    @staticmethod
    def _text_of(program: Program, part: wire.Part, op: wire.Append) -> str:
        match part:
            case wire.Text():
                return part.text
            case wire.VarRef():
                value = program.variables[part.var].text
                assert value is not None
                return value
            case wire.TokenIds():
                raise OpError(f"token ids can't be part of a {op.role} message: append them without a role", param="ids")

    def _fork(self, branch: Branch, op: wire.Fork) -> None:
        branch.text.seal()
        program = branch.program
        children = {
            child.runtime_id: child
            for number in range(op.first, op.first + op.count)
            if (child := program.branches.get(number)) is not None and not child.born
        }
        for child in children.values():
            child.log = branch.log.fork()
            child.text = branch.text.fork(child.log)
            child.born = True
            child.num_kept_ids = len(child.log)
            child.marks.clear()
            if child.poison is not None:  # it was cancelled before it was born
                child.marks[child.poison.op] = child.mark()
            self._services.runnable.append(child)
        uncached.fork(branch, children.values())
        self._services.link.fork(branch.runtime_id, branch.log, {number: child.log for number, child in children.items()})

    @staticmethod
    def _rollback(branch: Branch, op: wire.Rollback) -> None:
        mark = branch.marks.get(op.to_op)
        if mark is None or op.to_op >= op.op:
            raise OpError(
                f"op {op.to_op} is not an op of branch {branch.number} that has run and has not been rolled back",
                code="unknown_op",
                param="to_op",
            )
        branch.restore(mark)
        if branch.poison is not None and branch.poison.op >= op.to_op:
            branch.poison = None
        # Of this op too: what it took away is forgotten, so nobody can go back to before it.
        for number in [number for number in branch.marks if op.to_op < number <= op.op]:
            del branch.marks[number]


def _heals(branch: Branch, poison: Poison, op: wire.Op) -> bool:
    """A rollback to the op that failed, or to one before it, makes the branch whole again."""
    return isinstance(op, wire.Rollback) and op.to_op <= poison.op and op.to_op in branch.marks
