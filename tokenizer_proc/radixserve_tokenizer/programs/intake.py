"""What clients ask for is checked against what there is, and put where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.protocol import Owner
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import upkeep
from radixserve_tokenizer.programs.admission import Refusal
from radixserve_tokenizer.programs.branch import Branch, ValueOp
from radixserve_tokenizer.programs.budget import ProgramBudget
from radixserve_tokenizer.programs.errors import OpError, invalid_key
from radixserve_tokenizer.programs.log import TokenLog
from radixserve_tokenizer.programs.needs import NO_NEEDS, is_at_rest, needs_of
from radixserve_tokenizer.programs.opening import check_open
from radixserve_tokenizer.programs.program import MAX_CREDITS, Program, Variable
from radixserve_tokenizer.programs.seeds import random_seed
from radixserve_tokenizer.programs.transcript import Transcript

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.attachment import Attachment
    from radixserve_tokenizer.programs.clients import Client
    from radixserve_tokenizer.programs.outcomes import Outcomes
    from radixserve_tokenizer.programs.seeds import BranchPath
    from radixserve_tokenizer.programs.services import Services
    from radixserve_tokenizer.tenants.identity import Tenant

_MAX_BRANCHES = 16_384
_MAX_PENDING_OPS = 65_536
_RETRY_S = 1.0


class Intake:
    """Opens and closes programs, and queues ops on their branches."""

    def __init__(self, services: Services, outcomes: Outcomes, attachment: Attachment) -> None:
        self._services = services
        self._outcomes = outcomes
        self._attachment = attachment

    def take(self, client: Client, message: wire.FromClient) -> None:
        """Take a message in that is about a program."""
        match message:
            case wire.Open():
                self._open(client, message)
            case wire.Cancel() | wire.Drop() | wire.Close() | wire.Credit():
                program = client.programs.get(message.program)
                if program in client.undecided:
                    self.decide(program)
                    program = client.programs.get(message.program)
                if program is not None:  # it may have ended while this was under way
                    self._control(program, message)
                elif isinstance(message, wire.Close):
                    client.forget_refused(message.program)
            case wire.Attach():
                self._attachment.attach(client, message)
            case wire.Hello() | wire.Ping() | wire.Query():
                raise AssertionError("not about a program")
            case _:
                self._op(client, message)

    # ---- programs -------------------------------------------------------------------------------------------------

    def _open(self, client: Client, message: wire.Open) -> None:
        number = message.program
        if number in client.programs:
            text = f"program {number} is open already: count program numbers up"
            client.events.append(wire.Refused(program=number, status=400, code="duplicate_program", message=text))
            return
        try:
            check_open(message)
        except OpError as error:
            self._refuse(client, number, None, Refusal(error.status, error.code, error.message))
            return
        services = self._services
        tenant = services.tenants.caller(message.api_key, client.curve_key)
        if tenant is None:
            unknown = invalid_key()
            self._refuse(client, number, None, Refusal(unknown.status, unknown.code, unknown.message))
            return
        refusal = services.admission.refusal(tenant, NO_NEEDS, services.clock()) or services.detached.refusal(tenant, message)
        if refusal is not None:
            self._refuse(client, number, tenant, refusal)
            return
        client.forget_refused(number)
        program = Program(
            client=client,
            number=number,
            uid=services.next_id(),
            budget=ProgramBudget(message.budget),
            seed=random_seed() if message.seed is None else message.seed,
            tenant=tenant,
            owner=Owner(
                tenant=tenant.name,
                program=services.groups.number_of(tenant.name, message.group),
                cache_salt=message.cache_salt,
                priority=tenant.class_for(message.priority),
            ),
            credits=min(message.credits, MAX_CREDITS),
        )
        try:
            upkeep.opened(program)
        except OpError as error:
            self._refuse(client, number, tenant, Refusal(error.status, error.code, error.message, _RETRY_S))
            return
        root = self._branch(program, message.branch, ())
        root.born = True
        client.programs[number] = program
        if message.detached_ttl_s:
            services.detached.opened(program, message)
        if services.admission.needs_tokens(tenant):
            client.undecided[program] = None
            services.admission.wait(tenant)
        else:
            self.decide(program)

    def frame_ended(self, client: Client) -> None:
        """All that came with a program's `Open` is here: it can be decided when its appends have been carried out."""
        self._services.undecided.update(client.undecided)

    def decide_what_is_known(self) -> bool:
        """Admit or refuse the programs whose prompts are known; whether there were any."""
        known = [program for program in self._services.undecided if all(map(is_at_rest, program.branches.values()))]
        for program in known:
            self.decide(program)
        return bool(known)

    def decide(self, program: Program) -> None:
        """Admit or refuse a program by what is known of it now."""
        services, client, now = self._services, program.client, self._services.clock()
        model = services.link.model
        needs = needs_of(program, None if model is None else program.tenant.bounded(model).max_context)
        self._outcomes.decided(program)
        refusal = services.admission.refusal(program.tenant, needs, now)
        if refusal is not None:
            self._outcomes.end(program)
            self._refuse(client, program.number, program.tenant, refusal)
            return
        services.admission.admit(program.uid, program.tenant, needs, now)
        services.budgets.admitted(program, now)
        program.reserved = dict(needs.by_op)
        program.admit(wire.Admitted(program=program.number, limits=program.tenant.quota.limits(now)))
        services.runnable.extend(program.branches.values())

    def _refuse(self, client: Client, number: int, tenant: Tenant | None, refusal: Refusal) -> None:
        now = self._services.clock()
        self._services.admission.refused(tenant, now)
        client.note_refused(number)
        client.events.append(
            wire.Refused(
                program=number,
                status=refusal.status,
                code=refusal.code,
                message=refusal.message,
                retry_after_s=refusal.retry_after_s,
                limits=None if tenant is None else tenant.quota.limits(now),
            )
        )

    def _branch(self, program: Program, number: int, path: BranchPath) -> Branch:
        log = TokenLog()
        branch = Branch(program, number, self._services.next_id(), path, Transcript(self._services.text, log), log)
        program.branches[number] = branch
        return branch

    def _control(self, program: Program, message: wire.Cancel | wire.Drop | wire.Close | wire.Credit) -> None:
        match message:
            case wire.Close():
                self._outcomes.end(program)
            case wire.Credit():
                if message.amount > 0:
                    program.grant(message.amount)
                else:
                    self._fail(program.client, message.program, -1, OpError("credit amount must be above 0", param="amount"))
            case wire.Cancel() | wire.Drop():
                if len(message.branches) > _MAX_BRANCHES:
                    text = f"a message may name at most {_MAX_BRANCHES} branches, not {len(message.branches)}"
                    self._fail(program.client, message.program, -1, OpError(text, code="too_many_branches", param="branches"))
                    return
                self._cancel_or_drop(program, message)

    def _cancel_or_drop(self, program: Program, message: wire.Cancel | wire.Drop) -> None:
        """Of numbers that are not known the first is told: a small message must not make thousands of answers."""
        unknown = [number for number in message.branches if number not in program.branches and number not in program.dropped]
        for number in message.branches:
            branch = program.branches.get(number)
            if branch is None:
                continue
            if isinstance(message, wire.Drop):
                self._outcomes.drop(branch)
            else:
                self._outcomes.cancel(branch)
        if unknown:
            self._fail(program.client, message.program, -1, _unknown_branch(unknown[0]))

    # ---- ops ------------------------------------------------------------------------------------------------------

    def _op(self, client: Client, op: wire.Op) -> None:
        program = client.programs.get(op.program)
        if program is None:
            if not client.was_refused(op.program):
                text = f"program {op.program} is not open on this connection"
                self._fail(client, op.program, op.op, OpError(text, code="unknown_program", status=404, param="program"), op)
            return
        if op.op <= program.last_resent:
            return
        try:
            branch = self._check(program, op)
            if isinstance(op, wire.Fork):
                self._check_fork(program, op)
            upkeep.take(branch, op)
            if isinstance(op, wire.Fork):
                self._announce_children(program, branch, op)
            elif isinstance(op, wire.Gen):
                branch.generation_indices[op.op] = branch.num_generations
                branch.num_generations += 1
        except OpError as error:
            self._fail(client, op.program, op.op, error, op)
            return
        program.last_op = op.op
        if isinstance(op, ValueOp):
            program.variables[op.var] = Variable()
        program.num_pending_ops += 1
        branch.queue.append(op)
        self._services.runnable.append(branch)

    def _check(self, program: Program, op: wire.Op) -> Branch:
        branch = program.branches.get(op.branch)
        if branch is None:
            raise _dropped_branch(op.branch) if op.branch in program.dropped else _unknown_branch(op.branch)
        if op.op <= program.last_op:
            raise OpError(f"op {op.op} does not follow op {program.last_op}: count ops up", code="op_order", param="op")
        if isinstance(op, ValueOp) and (op.var in program.variables or op.var < 0):
            raise OpError(
                f"variable {op.var} can't be given to op {op.op}: count variables up from 0",
                code="duplicate_variable",
                param="var",
            )
        if program.num_pending_ops >= _MAX_PENDING_OPS:
            raise OpError(f"{_MAX_PENDING_OPS} ops of this program are waiting: read some values first", code="too_many_ops")
        return branch

    def _check_fork(self, program: Program, op: wire.Fork) -> None:
        most = self._services.config.max_options
        if not 1 <= op.count <= most:
            raise OpError(f"a fork may make between 1 and {most} branches, not {op.count}", param="count")
        numbers = range(op.first, op.first + op.count)
        taken = next((number for number in numbers if number in program.branches or number in program.dropped), None)
        if taken is not None:
            raise OpError(f"branch {taken} exists already: count branches up", code="duplicate_branch", param="first")
        if len(program.branches) + op.count > _MAX_BRANCHES:
            raise OpError(
                f"a program may have at most {_MAX_BRANCHES} branches at a time: drop some",
                code="too_many_branches",
                param="count",
            )

    def _announce_children(self, program: Program, parent: Branch, op: wire.Fork) -> None:
        for number in range(op.first, op.first + op.count):
            self._branch(program, number, parent.next_child_path())

    @staticmethod
    def _fail(client: Client, program: int, op: int, error: OpError, message: wire.Op | None = None) -> None:
        event = wire.Failed(
            program=program,
            op=op,
            code=error.code,
            message=error.message,
            var=message.var if isinstance(message, ValueOp) else -1,
            status=error.status,
            param=error.param,
            retryable=error.retryable,
        )
        known = client.programs.get(program)
        if known is None:
            client.events.append(event)
        else:
            known.tell(event)


def _unknown_branch(number: int) -> OpError:
    return OpError(f"branch {number} is not known: a fork must make it first", code="unknown_branch", param="branch")


def _dropped_branch(number: int) -> OpError:
    return OpError(f"branch {number} was dropped", code="unknown_branch", param="branch")
