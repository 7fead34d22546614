"""Generations and scorings: begun here, answered by the runtime, settled here."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from radixserve_runtime import protocol as runtime
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.link import Request
from radixserve_tokenizer.programs import sampling as sampling_rules
from radixserve_tokenizer.programs import uncached
from radixserve_tokenizer.programs.errors import ContextLengthError, EmptyPromptError, OpError
from radixserve_tokenizer.programs.generation import Generation
from radixserve_tokenizer.programs.limits import check_options
from radixserve_tokenizer.programs.log import TokenLog
from radixserve_tokenizer.programs.logprobs import describe, describe_prompt
from radixserve_tokenizer.programs.needs import generation_tokens, scoring_tokens
from radixserve_tokenizer.programs.scoring import Scoring, encode_options
from radixserve_tokenizer.programs.seeds import op_seed
from radixserve_tokenizer.tenants.slots import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.programs.branch import Branch, ValueOp
    from radixserve_tokenizer.programs.outcomes import Outcomes
    from radixserve_tokenizer.programs.services import Services, Task

logger = logging.getLogger(__name__)

_EMPTY_BASE = runtime.Base()


class Tasks:
    """What waits for the runtime, and what its answers mean."""

    def __init__(self, services: Services, outcomes: Outcomes) -> None:
        self._services = services
        self._outcomes = outcomes
        self._unanswered: dict[int, Ticket] = {}
        """By request that was cancelled: to whom its cost goes."""

    # ---- begin ----------------------------------------------------------------------------------------------------

    def begin_generation(self, branch: Branch, op: wire.Gen) -> bool:
        """Begin a generation; False if it has to wait for the runtime's first `Ready`."""
        services = self._services
        sampling_rules.check(op.sampling, services.limits)
        model = self.model(branch)
        if model is None:
            return False
        branch.text.open_turn()
        index = branch.generation_indices.pop(op.op)
        sampling = sampling_rules.resolve(
            op.sampling,
            seed=op_seed(branch.program.seed, branch.path, index),
            prompt_tokens=len(branch.log),
            max_context=model.max_context,
        )
        asked_tokens, sampling = sampling.max_tokens, branch.program.budget.clip(sampling)
        tokens = generation_tokens(len(branch.log), op.sampling.max_tokens, model.max_context)
        task = Generation(branch, op, services.text.tokenizer, sampling, len(branch.log), self._ticket(branch, op, tokens))
        branch.task = task
        branch.program.budget.begins(task, asked_tokens)
        services.admission.enqueue(branch.program.uid, task.ticket)
        if op.constraint is None:
            self._generate(task, None)
            return True
        grammar = services.grammars.order(op.constraint, task, partial(self._grammar_came, task))
        if grammar is not None:
            self._generate(task, grammar)
        else:
            task.undo = partial(services.grammars.cancel, op.constraint, task)
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

    def _grammar_came(self, task: Generation, result: runtime.GrammarRef | OpError) -> None:
        task.undo = None
        if isinstance(result, OpError):
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
        task.undo = partial(self._forget, task, request_id)
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

    def _forget(self, task: Task, request_id: int) -> None:
        self._services.tasks.pop(request_id, None)
        if self._services.link.cancel(request_id):
            task.ticket.num_unanswered += 1
            self._unanswered[request_id] = task.ticket

    def _stop_scoring(self, task: Scoring) -> None:
        for request_id in (task.conditional_id, task.unconditional_id):
            self._forget(task, request_id)
        self._services.link.drop(task.temporary)

    # ---- answers --------------------------------------------------------------------------------------------------

    def guarded(self, request_id: int, action: Callable[[], None]) -> None:
        """Run what handles an answer; if it raises, the op it belongs to fails alone."""
        task = self._services.tasks.get(request_id)
        try:
            action()
        except OpError as error:
            if task is None or task.branch.task is not task:
                raise
            self._outcomes.fail(task.branch, task.op, error)
        except Exception as error:
            if task is None or task.branch.task is not task:
                raise
            self._outcomes.fail_unexpectedly(task.branch, task.op, error)

    def on_tokens(self, event: runtime.Tokens) -> None:
        """Tokens of a generation."""
        task = self._generation(event.request_id)
        if task is None:
            return
        self._outcomes.dequeue(task, first_token=True)
        self._services.leases.used(task.branch)
        if task.branch.program.budget.feed(task, len(event.token_ids)):
            self._services.budgets.spent[task.branch.program] = None
        if task.feed(event):
            task.branch.program.note_output(task)

    def on_prompt_logprobs(self, event: runtime.PromptLogprobs) -> None:
        """The prompt's log-probabilities."""
        task = self._generation(event.request_id)
        if task is not None:
            task.prompt_logprobs = event.entries

    def on_finished(self, event: runtime.Finished) -> None:
        """A generation's end."""
        task = self._generation(event.request_id)
        if task is None:
            self.on_late(event.request_id, event.usage)
            return
        self._outcomes.dequeue(task, first_token=True)
        self._services.link.finish(event.request_id)
        task.ticket.settle(event.usage, self._services.clock())
        self._services.leases.used(task.branch)
        branch, program, tokenizer = task.branch, task.branch.program, self._services.text.tokenizer
        output = task.finish(event)
        over = program.budget.ended_by_it(task, event.reason)
        if over is not None:
            raise over
        prompt_ids = branch.log.ids_from(0) if task.op.sampling.prompt_logprobs >= 0 else ()
        if task.op.stream and program.credits > 0:  # without credits the rest comes with `Done` alone
            delta = task.take_delta()
            if delta is not None:
                program.credits -= 1
                program.tell(delta)
        branch.log.append(output.token_ids)
        branch.text.generated(output.token_ids)
        self._outcomes.done(
            task,
            wire.Done(
                program=program.number,
                op=task.op.op,
                var=task.op.var,
                value=output.text,
                token_ids=output.token_ids,
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
                usage=_usage(event.usage, task.ticket.held_s),
                logprobs=describe(tokenizer, output.logprobs),
                prompt_logprobs=describe_prompt(tokenizer, prompt_ids, task.prompt_logprobs) if prompt_ids else (),
                prompt_token_ids=prompt_ids,
                num_branch_tokens=len(branch.log),
            ),
        )

    def on_scored(self, event: runtime.Scored) -> None:
        """Scores of one request."""
        task = self._services.tasks.get(event.request_id)
        if not isinstance(task, Scoring):
            self.on_late(event.request_id, event.usage)
            return
        self._services.link.finish(event.request_id)
        task.ticket.settle(event.usage, self._services.clock())
        if not task.take(event):
            return
        self._outcomes.dequeue(task, first_token=True)
        branch, op = task.branch, task.op
        scores, best = task.scores()
        if isinstance(op, wire.Select):
            branch.log.append(task.option_ids[best])
            branch.text.generated(task.option_ids[best])
        self._outcomes.done(
            task,
            wire.Done(
                program=op.program,
                op=op.op,
                var=op.var,
                value=op.options[best],
                token_ids=task.option_ids[best],
                usage=_usage(task.usage, task.ticket.held_s),
                scores=scores,
                num_branch_tokens=len(branch.log),
            ),
        )

    def on_failed(self, event: runtime.Failed) -> None:
        """The runtime could not serve one request."""
        task = self._services.tasks.get(event.request_id)
        if task is None:
            self.on_late(event.request_id, None)
            return
        self._services.link.finish(event.request_id)
        status = 503 if event.retryable else 400 if event.code in _CLIENT_ERRORS else 500
        self._outcomes.fail(
            task.branch, task.op, OpError(event.message, code=event.code, status=status, retryable=event.retryable)
        )

    def on_connection_lost(self) -> None:
        """What a client has seen part of can't be run again unnoticed."""
        for request_id in list(self._unanswered):
            self.on_late(request_id, None)
        for task in list(self._services.tasks.values()):
            if isinstance(task, Generation) and task.is_exposed:
                error = OpError(
                    "the runtime restarted while this generation was being streamed; send it again",
                    code="runtime_restarted",
                    status=503,
                    retryable=True,
                )
                self._outcomes.fail(task.branch, task.op, error)

    def on_late(self, request_id: int, usage: runtime.Usage | None) -> None:
        """The runtime's last word on a request that nobody wants any more: what it cost is its tenant's all the same."""
        ticket = self._unanswered.pop(request_id, None)
        if ticket is not None:
            ticket.num_unanswered -= 1
            ticket.settle(usage, self._services.clock())

    def run_again(self, lost: list[Request]) -> None:
        """A new runtime serves: what nobody has seen anything of begins anew, from the token logs."""
        for request in lost:
            task = self._services.tasks.get(request.request_id)
            if task is None:
                continue
            if isinstance(task, Generation):
                task.branch.program.streams.pop(task, None)
                task.branch.program.budget.begins_again(task)
                task.reset()
            self._services.link.submit(request)

    def fail_all(self, error: OpError) -> None:
        """Nothing that waits for the runtime will be served."""
        for task in list(self._services.tasks.values()):
            if task.branch.task is task:
                self._outcomes.fail(task.branch, task.op, error)

    def _generation(self, request_id: int) -> Generation | None:
        task = self._services.tasks.get(request_id)
        return task if isinstance(task, Generation) else None


_CLIENT_ERRORS = frozenset({"invalid_value", "context_length_exceeded", "prompt_too_long", "invalid_grammar"})


def _usage(usage: runtime.Usage, held_s: float) -> wire.Usage:
    return wire.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        queued_s=usage.queued_s + held_s,
        prefill_s=usage.prefill_s,
        decode_s=usage.decode_s,
        num_preemptions=usage.num_preemptions,
    )
