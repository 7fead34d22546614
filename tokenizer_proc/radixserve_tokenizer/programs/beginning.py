"""Generations and scorings are begun here: checked, planned, and handed to the compiler or the runtime."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from radixserve_runtime import protocol as runtime
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.grammar.composite import Composite
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.link import Request
from radixserve_tokenizer.programs import sampling as sampling_rules
from radixserve_tokenizer.programs import uncached
from radixserve_tokenizer.programs.errors import ContextLengthError, EmptyPromptError, OpError
from radixserve_tokenizer.programs.generation import Generation
from radixserve_tokenizer.programs.limits import check_options
from radixserve_tokenizer.programs.log import TokenLog
from radixserve_tokenizer.programs.needs import generation_tokens, scoring_tokens
from radixserve_tokenizer.programs.scoring import Scoring, encode_options
from radixserve_tokenizer.programs.seeds import op_seed
from radixserve_tokenizer.tenants.slots import Ticket
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.plan import OutputPlan, plan_output

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.branch import Branch, ValueOp
    from radixserve_tokenizer.programs.outcomes import Outcomes
    from radixserve_tokenizer.programs.services import Services, Task
    from radixserve_tokenizer.programs.tasks import Tasks

_EMPTY_BASE = runtime.Base()


class Beginnings:
    """Begins ops that have a value. Their answers come to `Tasks`."""

    def __init__(self, services: Services, outcomes: Outcomes, tasks: Tasks) -> None:
        self._services = services
        self._outcomes = outcomes
        self._tasks = tasks

    def begin_generation(self, branch: Branch, op: wire.Gen) -> bool:
        """Begin a generation; False if it has to wait for the runtime's first `Ready`."""
        services = self._services
        sampling_rules.check(op.sampling, services.limits)
        model = self.model(branch)
        if model is None:
            return False
        branch.text.open_turn()
        plan = self._plan(branch, op)
        index = branch.generation_indices.pop(op.op)
        sampling = sampling_rules.resolve(
            op.sampling,
            seed=op_seed(branch.program.seed, branch.path, index),
            prompt_tokens=len(branch.log),
            max_context=model.max_context,
        )
        if plan.calls_only:
            sampling = msgspec.structs.replace(sampling, stop=())  # a stop string ends text, and there is none
        asked_tokens, sampling = sampling.max_tokens, branch.program.budget.clip(sampling)
        tokens = generation_tokens(len(branch.log), op.sampling.max_tokens, model.max_context)
        ticket = self._ticket(branch, op, tokens)
        task = Generation(branch, op, services.text.tokenizer, sampling, len(branch.log), ticket, plan)
        branch.task = task
        branch.program.budget.begins(task, asked_tokens)
        services.admission.enqueue(branch.program.uid, task.ticket)
        if plan.grammar is None:
            self._generate(task, None)
            return True
        tenant = branch.program.tenant.name
        grammar = services.grammars.order(plan.grammar, tenant, task, partial(self._grammar_came, task))
        if grammar is not None:
            self._generate(task, grammar)
        else:
            task.undo = partial(services.grammars.cancel, plan.grammar, tenant, task)
        return True

    def begin_scoring(self, branch: Branch, op: wire.Select | wire.Score) -> bool:
        """Begin a scoring; False if it has to wait for the runtime's first `Ready`."""
        services = self._services
        check_options(op.options)
        option_ids = encode_options(services.text.tokenizer, op.options, services.config.max_options)
        model = self.model(branch)
        if model is None:
            return False
        branch.text.seal()
        task = Scoring(branch, op, option_ids, self._ticket(branch, op, scoring_tokens(len(branch.log), op.options)))
        branch.task = task
        task.undo = partial(self._stop_scoring, task)
        services.admission.enqueue(branch.program.uid, task.ticket)
        log, branch_id = self._scored_log(task)
        longest = max(map(len, option_ids))
        if len(log) == 0:
            raise EmptyPromptError
        if len(log) + longest > model.max_context:
            raise ContextLengthError(model.max_context, len(log), f" and an option {longest} more")
        requests = [self._score(task, branch_id, log)]
        task.conditional_id = requests[0].request_id
        if op.method == "unconditional":
            alone = TokenLog()
            alone.append([self._first_token()])
            alone_id = services.next_id()
            task.temporary[alone_id] = alone
            requests.append(self._score(task, alone_id, alone))
            task.unconditional_id = requests[1].request_id
        self._enter(task, requests)
        return True

    def model(self, branch: Branch) -> runtime.ModelInfo | None:
        """The served model; None while the runtime has not told yet, and then the branch will be woken."""
        model = self._services.link.model
        if model is None and not branch.waits_at_gate:
            branch.waits_at_gate = True
            self._services.gated.append(branch)
        return None if model is None else branch.program.tenant.bounded(model)

    def _plan(self, branch: Branch, op: wire.Gen) -> OutputPlan:
        """What the output may be. Raises `OpError` for what can't be enforced."""
        text = self._services.text
        reasoning = text.reasoning if op.parse_reasoning else None
        stage = branch.text.reasoning_stage
        id_length = text.template.tool_support.id_length if text.template is not None else 0
        try:
            return plan_output(
                op.constraint, op.tool_use, branch.text.tools, text.tool_format, reasoning, stage, id_length=id_length
            )
        except ToolError as error:
            raise OpError(error.message, code=error.code, param=error.param) from error
        except ConstraintError as error:
            raise OpError(str(error), code="invalid_grammar", param="constraint") from error

    def _grammar_came(self, task: Generation, result: runtime.GrammarRef | OpError) -> None:
        task.undo = None
        if isinstance(result, OpError):
            if isinstance(task.plan.grammar, Composite) and not result.retryable:
                result.param = task.plan.grammar.param_of(result.message)
            self._outcomes.fail(task.branch, task.op, result)
            return
        try:
            self._generate(task, result)
        except Exception as error:
            self._outcomes.fail_unexpectedly(task.branch, task.op, error)

    def _generate(self, task: Generation, grammar: runtime.GrammarRef | None) -> None:
        services, branch = self._services, task.branch
        request_id = task.request_id = services.next_id()
        message = runtime.Generate(
            request_id=request_id,
            branch_id=branch.runtime_id,
            base=_EMPTY_BASE,
            sampling=task.sampling,
            owner=branch.program.owner,
            grammar=grammar,
        )
        task.undo = partial(self._tasks.forget, task, request_id)
        self._enter(task, [Request(message, branch.log)])

    def _score(self, task: Scoring, branch_id: int, log: TokenLog) -> Request:
        message = runtime.Score(
            request_id=self._services.next_id(),
            branch_id=branch_id,
            base=_EMPTY_BASE,
            options=task.option_ids,
            owner=task.branch.program.owner,
        )
        return Request(message, log)

    def _ticket(self, branch: Branch, op: ValueOp, tokens: int) -> Ticket:
        """`tokens` is the estimate, unless one was made and taken when the program was admitted."""
        program = branch.program
        reserved = program.reserved.pop(op.op, None)
        return Ticket(
            tenant=program.tenant,
            priority=program.owner.priority,
            tokens=tokens if reserved is None else reserved,
            uncached_tokens=uncached.take(branch),
            is_paid=reserved is not None,
        )

    def _enter(self, task: Task, requests: list[Request]) -> None:
        """Give the runtime these, now or when the tenant's limits let them through."""
        self._services.slots.enter(task.ticket, partial(self._submit, task, requests), self._services.clock())

    def _submit(self, task: Task, requests: list[Request]) -> None:
        try:
            for request in requests:
                self._services.tasks[request.request_id] = task
                self._services.link.submit(request)
        except Exception as error:
            self._outcomes.fail_unexpectedly(task.branch, task.op, error)

    def _scored_log(self, task: Scoring) -> tuple[TokenLog, int]:
        """The log that options go on from. A `Score` that would open a turn does so on a branch of its own."""
        branch = task.branch
        branch.text.seal()
        if isinstance(task.op, wire.Select) or not branch.text.would_open_turn:
            branch.text.open_turn()
            return branch.log, branch.runtime_id
        log = branch.log.fork()
        scratch_id = self._services.next_id()
        task.temporary[scratch_id] = log
        self._services.link.fork(branch.runtime_id, branch.log, {scratch_id: log})
        branch.text.fork(log).open_turn()
        return log, scratch_id

    def _first_token(self) -> int:
        """What the model expects before anything else: where it has no such token, the one that ends what came before."""
        tokenizer = self._services.text.tokenizer
        if tokenizer.bos_token_id is not None:
            return tokenizer.bos_token_id
        if tokenizer.eos_token_ids:
            return tokenizer.eos_token_ids[0]
        raise OpError(
            "this model has no token to score options without a context: use another method", code="unsupported", param="method"
        )

    def _stop_scoring(self, task: Scoring) -> None:
        for request_id in (task.conditional_id, task.unconditional_id):
            self._tasks.forget(task, request_id)
        self._services.link.drop(task.temporary)
