"""OpenTelemetry spans of programs, for those who pass a tracer: nothing of OpenTelemetry is imported otherwise.

A run is a span in the caller's context, and current while the program runs. Each op with a value is a span under it, with
the GenAI names of OpenTelemetry's semantic conventions where they have one; each tool that `s.call` runs is a current span of
its own. No span has texts of prompts or answers.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from radixserve_lang.errors import (
    ClientClosedError,
    ConnectionFailedError,
    OpCancelledError,
    OpError,
    ProgramEndedError,
    RadixServeError,
)
from radixserve_tokenizer.protocol import Done, Gen

if TYPE_CHECKING:
    from collections.abc import Generator

    from opentelemetry.trace import Span, Tracer

    from radixserve_lang.records import OpRecord
    from radixserve_lang.session import Session
    from radixserve_tokenizer.protocol import Sampling

#: Of the program that runs in this context, for its tools.
_tracer: ContextVar[Tracer | None] = ContextVar("radixserve_tracer", default=None)

_PROVIDER = "radixserve"


@contextlib.contextmanager
def traced_run(tracer: Tracer | None, name: str, session: Session) -> Generator[None]:
    """The span of a run; without a tracer nothing. What the block raises is recorded."""
    if tracer is None:
        yield
        return
    model = _model(session)
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": name,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": model,
    }
    with tracer.start_as_current_span(f"invoke_agent {name}", attributes=attributes) as span:
        token = _tracer.set(tracer)
        try:
            yield
        finally:
            _tracer.reset(token)
            _add_ops(tracer, span, session, model)


@contextlib.contextmanager
def traced_tool(name: str, call_id: str) -> Generator[None]:
    """The span of a tool that runs in a traced program."""
    tracer = _tracer.get()
    if tracer is None:
        yield
        return
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.type": "function",
    }
    with tracer.start_as_current_span(f"execute_tool {name}", attributes=attributes):
        yield


def _model(session: Session) -> str:
    try:
        return session.channel.client.welcome.model.name
    except (ConnectionFailedError, ClientClosedError):
        return ""  # the program will say so


# ---- ops: made when the run has ended, with the times that they had --------------------------------------------------


def _add_ops(tracer: Tracer, run: Span, session: Session, model: str) -> None:
    from opentelemetry.trace import SpanKind, set_span_in_context

    context = set_span_in_context(run)
    totals = {"input": 0, "output": 0, "cached": 0}
    for branch in session.root.family():
        for op in list(branch.ops):
            if op.cell is None:
                continue
            name = "chat" if op.kind == "gen" else op.kind
            span = tracer.start_span(
                f"{name} {model}".strip(),
                context=context,
                kind=SpanKind.CLIENT,
                start_time=op.began_ns,
                attributes=_attributes(op, name, model),
            )
            outcome = op.cell.outcome
            if isinstance(outcome, Done):
                totals["input"] += outcome.usage.prompt_tokens
                totals["output"] += outcome.usage.output_tokens
                totals["cached"] += outcome.usage.cached_tokens
            _conclude(span, outcome, op.cell.settled_ns)
            span.end(end_time=op.cell.settled_ns or None)
    run.set_attributes(
        {
            "gen_ai.usage.input_tokens": totals["input"],
            "gen_ai.usage.output_tokens": totals["output"],
            "gen_ai.usage.cache_read.input_tokens": totals["cached"],
        }
    )


def _attributes(op: OpRecord, name: str, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": name,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": model,
        "radixserve.where": op.where,
        "radixserve.branch": "/".join(map(str, op.branch.path)),
    }
    if isinstance(op.sent, Gen):
        found |= _requested(op.sent.sampling)
        constraint = op.sent.constraint
        found["gen_ai.output.type"] = "json" if constraint is not None and "json" in constraint.kind else "text"
    if op.check is not None:
        found["radixserve.refused_attempts"] = len(op.check.refused)
    return found


def _requested(sampling: Sampling) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        "seed": sampling.seed,
        "stop_sequences": sampling.stop or None,
    }
    return {f"gen_ai.request.{name}": value for name, value in wanted.items() if value is not None}


def _conclude(span: Span, outcome: Done | RadixServeError | None, at_ns: int) -> None:
    from opentelemetry.trace import Status, StatusCode

    if isinstance(outcome, Done):
        usage = outcome.usage
        span.set_attributes(
            {
                "gen_ai.response.finish_reasons": (outcome.finish_reason,),
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "radixserve.queued_s": usage.queued_s,
                "radixserve.prefill_s": usage.prefill_s,
                "radixserve.decode_s": usage.decode_s,
                "radixserve.preemptions": usage.num_preemptions,
                "radixserve.tool_calls": len(outcome.calls),
            }
        )
        return
    if outcome is None or isinstance(outcome, OpCancelledError | ProgramEndedError):
        span.set_attribute("radixserve.cancelled", True)
        return
    span.record_exception(outcome, timestamp=at_ns)
    code = outcome.code if isinstance(outcome, OpError) else type(outcome).__name__
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, str(outcome)))
