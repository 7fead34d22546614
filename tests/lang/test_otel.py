"""Spans of programs, as an in-memory exporter gets them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import radixserve_lang as rs
from radixserve_lang import testing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class Spans:
    """A tracer and what it has recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def all(self) -> list[ReadableSpan]:
        """In the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    def of(self, name: str) -> list[ReadableSpan]:
        """By name."""
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only one."""
        (span,) = self.of(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


@rs.tool
def look(what: str) -> str:
    """Look it up."""
    with trace.get_tracer("user").start_as_current_span("inner"):
        return f"saw {what}"


@rs.function
def agent(s: rs.State) -> str:
    s += rs.user("go")
    s.call(s.gen(tools=(look,)).value)
    s.select(["a", "b"])
    with s.fork(2) as (one, two):
        two.gen()
        return one.gen(json=int, max_tokens=8, temperature=0.5, top_k=3, seed=9, stop="\n").text


def script() -> list[Any]:
    return [testing.call(look, what="it"), "b", testing.RUNNING, 7]


def test_a_run_its_ops_and_its_tools(spans: Spans) -> None:
    with testing.Scripted(script()) as engine, spans.tracer.start_as_current_span("caller") as caller:
        assert agent.using(tracer=spans.tracer).run(engine=engine).value == "7"
    run = spans.one("invoke_agent agent")
    assert parent_of(run) == caller.get_span_context().span_id
    assert attributes(run)["gen_ai.operation.name"] == "invoke_agent"
    assert attributes(run)["gen_ai.agent.name"] == "agent"
    assert attributes(run)["gen_ai.usage.output_tokens"] > 0
    tool = spans.one("execute_tool look")
    assert attributes(tool)["gen_ai.tool.name"] == "look"
    assert attributes(tool)["gen_ai.tool.call.id"]
    chats = spans.of("chat scripted")
    assert len(chats) == 3
    assert all(parent_of(span) == id_of(run) for span in (tool, *chats, spans.one("select scripted")))
    assert all(span.kind is SpanKind.CLIENT for span in chats)


def test_what_a_generation_asked_and_cost(spans: Spans) -> None:
    with testing.Scripted(script()) as engine:
        agent.using(tracer=spans.tracer).run(engine=engine)
    first, chosen, cancelled = spans.of("chat scripted")
    found = attributes(chosen)
    assert (
        found.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "radixserve",
            "gen_ai.request.model": "scripted",
            "gen_ai.request.max_tokens": 8,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_k": 3,
            "gen_ai.request.seed": 9,
            "gen_ai.request.stop_sequences": ("\n",),
            "gen_ai.output.type": "json",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.output_tokens": 1,
            "radixserve.branch": "0",
        }.items()
    )
    assert found["gen_ai.usage.cache_read.input_tokens"] <= found["gen_ai.usage.input_tokens"]
    assert "test_otel.py" in found["radixserve.where"]
    assert attributes(first)["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert attributes(cancelled)["radixserve.cancelled"] is True
    assert cancelled.status.status_code is StatusCode.UNSET
    assert chosen.start_time is not None
    assert chosen.end_time is not None
    run = spans.one("invoke_agent agent")
    assert run.start_time is not None
    assert run.start_time <= chosen.start_time <= chosen.end_time
    assert not any("saw" in str(value) or value == "go" for span in spans.all for value in attributes(span).values())


def test_failures_are_recorded(spans: Spans) -> None:
    @rs.function
    def failing(s: rs.State) -> str:
        s += rs.user("go")
        return s.gen().value

    with testing.Scripted([testing.Failure("no room", code="boom")]) as engine, pytest.raises(rs.OpError):
        failing.using(tracer=spans.tracer).run(engine=engine)
    op, run = spans.all
    assert attributes(op)["error.type"] == "boom"
    for span in (op, run):
        assert span.status.status_code is StatusCode.ERROR
        (event,) = span.events
        assert event.name == "exception"
        assert "no room" in str(dict(event.attributes or {})["exception.message"])


def test_a_tool_that_raises(spans: Spans) -> None:
    @rs.tool
    def broken() -> str:
        """Break."""
        raise KeyError("gone")

    @rs.function
    def calls(s: rs.State) -> object:
        s += rs.user("go")
        return s.call(s.gen(tools=(broken,)).value, on_error="append")

    with testing.Scripted([testing.call(broken)]) as engine:
        calls.using(tracer=spans.tracer).run(engine=engine)
    assert spans.one("execute_tool broken").status.status_code is StatusCode.ERROR
    assert spans.one("invoke_agent calls").status.status_code is StatusCode.UNSET


@rs.function
async def later(s: rs.State, text: str) -> str:
    s += rs.user(text)
    return await s.gen()


def test_async_programs_streams_and_batches_have_the_callers_span_as_parent(spans: Spans) -> None:
    program = later.using(tracer=spans.tracer)
    with testing.Scripted(then="x") as engine, spans.tracer.start_as_current_span("caller") as caller:
        program.run("a", engine=engine)
        list(program.stream("b", engine=engine))
        program.run_batch(["c", "d"], engine=engine)
    runs = spans.of("invoke_agent later")
    assert len(runs) == 4
    assert {parent_of(span) for span in runs} == {caller.get_span_context().span_id}
    assert len(spans.of("chat scripted")) == 4


@rs.function
def plain(s: rs.State, text: str) -> str:
    s += rs.user(text)
    return s.gen().value


def test_threads_of_a_batch_too(spans: Spans) -> None:
    with testing.Scripted(then="x") as engine, spans.tracer.start_as_current_span("caller") as caller:
        plain.using(tracer=spans.tracer).run_batch(["c", "d", "e"], engine=engine)
    assert {parent_of(span) for span in spans.of("invoke_agent plain")} == {caller.get_span_context().span_id}


def test_nobody_pays_who_does_not_ask() -> None:
    code = (
        "import sys, radixserve_lang as rs\n"
        "@rs.function\n"
        "def f(s):\n"
        "    return s.gen().value\n"
        "with rs.testing.Scripted(['x']) as e:\n"
        "    f.run(engine=e)\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
