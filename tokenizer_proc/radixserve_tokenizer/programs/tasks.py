"""What the runtime's answers mean for the generations and scorings that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.generation import Generation
from radixserve_tokenizer.programs.logprobs import describe, describe_prompt
from radixserve_tokenizer.programs.memory import said_turn
from radixserve_tokenizer.programs.scoring import Scoring

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime import protocol as runtime
    from radixserve_tokenizer.link import Request
    from radixserve_tokenizer.programs.outcomes import Outcomes
    from radixserve_tokenizer.programs.services import Services, Task
    from radixserve_tokenizer.tenants.slots import Ticket


class Tasks:
    """What waits for the runtime, and what its answers do to it."""

    def __init__(self, services: Services, outcomes: Outcomes) -> None:
        self._services = services
        self._outcomes = outcomes
        self._unanswered: dict[int, Ticket] = {}
        """By request that was cancelled: to whom its cost goes."""

    def forget(self, task: Task, request_id: int) -> None:
        """Nobody wants this request's answer any more; what it costs is still counted."""
        self._services.tasks.pop(request_id, None)
        if self._services.link.cancel(request_id):
            task.ticket.num_unanswered += 1
            self._unanswered[request_id] = task.ticket

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
        program.tell_rest(task)
        place, turn = branch.text.turn_place, said_turn(output.text, output.reasoning, output.calls)
        if place is not None:
            self._services.memory.note(program.owner, place, turn, output.token_ids)
        branch.log.append(output.token_ids)
        branch.text.generated(output.token_ids, turn)
        branch.text.called(output.text, output.calls)
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
                reasoning=output.reasoning,
                calls=output.calls,
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


_CLIENT_ERRORS = frozenset({"invalid_value", "context_length_exceeded", "prompt_too_long", "invalid_grammar", "nothing_allowed"})


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
