"""Calls through a whole core: the Tools op, what is rendered, what a grammar is asked for, what comes back."""

from __future__ import annotations

import json

import pytest

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.grammar.composite import Composite
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.text.template import ChatTemplate
from radixserve_tokenizer.tools.jsonformats import Hermes, SmolLM2
from radixserve_tokenizer.tools.marks import Mark
from radixserve_tokenizer.tools.reasoning import ReasoningMarks
from tests.tokenizer.programs.harness import TEMPLATE, CompileFailed, FakeCompiler, World, encode, says, text_model, tokenizer

WEATHER = wire.ToolSpec(
    name="get_weather",
    description="Weather of a city",
    parameters=json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
)
TIME = wire.ToolSpec(name="get_time")
CALL = '<tool_call>[{"name": "get_weather", "arguments": {"city": "Zürich"}}]</tool_call>'
REQUIRED = wire.ToolUse(mode="required")


def model() -> TextModel:
    format = SmolLM2(tokenizer().special)
    return TextModel(tokenizer(), ChatTemplate(TEMPLATE, tokenizer(), format), format)


def world() -> World:
    return World(text=model())


def opened(*ops: wire.FromClient) -> World:
    return world().send(
        wire.Open(program=0, seed=1),
        wire.Append(program=0, op=0, branch=0, parts=(wire.Text(text="hello"),), role="user"),
        wire.Tools(program=0, op=1, branch=0, tools=(WEATHER, TIME)),
        *ops,
    )


def prompt_of(w: World, index: int = -1) -> str:
    request = w.sent_generations()[index]
    return tokenizer().decode(w.runtime.prompts[request.request_id], skip_special=False)


def gen(op: int, **fields: object) -> wire.Gen:
    return wire.Gen(program=0, op=op, branch=0, var=op, **fields)  # type: ignore[arg-type]


def test_a_required_call() -> None:
    w = opened()
    w.runtime.scripts.append(says(CALL[:20], CALL[20:]))
    w.send(gen(2, tool_use=REQUIRED))
    done = w.one(wire.Done)
    assert (done.value, done.finish_reason, done.stop_reason) == ("", "tool_calls", None)
    (call,) = done.calls
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Zürich"}')
    assert call.id.startswith("call_")
    assert done.token_ids == encode(CALL)
    assert "get_weather" in prompt_of(w)
    assert "Weather of a city" in prompt_of(w)


def test_ids_are_the_same_for_the_same_seed_and_differ_between_turns() -> None:
    def run() -> list[str]:
        w = opened()
        w.runtime.scripts += [says(CALL), says(CALL)]
        w.send(gen(2, tool_use=REQUIRED, sampling=wire.Sampling(seed=7)))
        w.send(wire.Append(program=0, op=3, branch=0, parts=(wire.Text(text="sunny"),), role="tool"))
        w.send(gen(4, tool_use=REQUIRED, sampling=wire.Sampling(seed=7)))
        return [call.id for done in w.of(wire.Done) for call in done.calls]

    ids = run()
    assert len(set(ids)) == 2
    assert run() == ids


@pytest.mark.parametrize(("streamed", "credits"), [(False, 64), (True, 64), (True, 0)])
def test_deltas_of_a_call_join_to_the_call(streamed: bool, credits: int) -> None:
    w = world().send(
        wire.Open(program=0, seed=1, credits=credits),
        wire.Append(program=0, op=0, branch=0, parts=(wire.Text(text="hello"),), role="user"),
        wire.Tools(program=0, op=1, branch=0, tools=(WEATHER,)),
    )
    w.runtime.scripts.append(says("I look. ", *CALL))
    w.send(gen(2, tool_use=wire.ToolUse(), stream=streamed))
    done = w.one(wire.Done)
    assert done.value == "I look."
    assert [call.arguments for call in done.calls] == ['{"city": "Zürich"}']
    deltas = w.of(wire.Delta)
    assert bool(deltas) == (streamed and credits > 0)
    if deltas:
        assert "".join(delta.text for delta in deltas) == "I look."
        pieces = [piece for delta in deltas for piece in delta.calls]
        assert (pieces[0].id, pieces[0].name) == (done.calls[0].id, "get_weather")
        assert "".join(piece.arguments for piece in pieces) == done.calls[0].arguments


def test_a_call_that_max_tokens_cuts_is_none() -> None:
    w = opened()
    w.runtime.scripts.append(says(CALL[:50], reason="length"))
    w.send(gen(2, tool_use=REQUIRED, stream=True))
    done = w.one(wire.Done)
    assert (done.value, done.finish_reason, done.calls) == ("", "length", ())
    assert done.token_ids == encode(CALL[:50])


def test_without_tool_use_the_output_is_text() -> None:
    w = opened()
    w.runtime.scripts.append(says(CALL))
    w.send(gen(2))
    done = w.one(wire.Done)
    assert (done.value, done.finish_reason, done.calls) == (CALL, "stop", ())
    assert w.sent_generations()[-1].grammar is None


def test_tools_are_inherited_and_rolled_back() -> None:
    w = opened()
    w.send(
        wire.Fork(program=0, op=2, branch=0, first=1, count=1),
        wire.Gen(program=0, op=3, branch=1, var=3),
        wire.Tools(program=0, op=4, branch=0, tools=()),
        wire.Gen(program=0, op=5, branch=0, var=5),
        wire.Rollback(program=0, op=6, branch=0, to_op=4),
        wire.Gen(program=0, op=7, branch=0, var=7),
        wire.Rollback(program=0, op=8, branch=0, to_op=1),
        wire.Gen(program=0, op=9, branch=0, var=9),
    )
    prompts = {w.one(wire.Done, op=op).op: prompt_of(w, index) for index, op in enumerate((3, 5, 7, 9))}
    assert [("get_weather" in prompts[op]) for op in (3, 5, 7, 9)] == [True, False, True, False]


def test_results_follow_a_call_in_the_log_as_it_was_generated() -> None:
    w = opened()
    w.runtime.scripts.append(says(CALL))
    w.send(gen(2, tool_use=REQUIRED))
    w.send(
        wire.Append(
            program=0, op=3, branch=0, parts=(wire.Text(text="<|end|>"),), role="tool", fields={"tool_call_id": "call_x"}
        ),
        gen(4),
    )
    prompt = w.runtime.prompts[w.sent_generations()[-1].request_id]
    first = w.runtime.prompts[w.sent_generations()[0].request_id]
    assert prompt[: len(first)] == first
    text = tokenizer().decode(prompt, skip_special=False)
    assert f"{CALL}<|end|>\n<|start|>user\nResult: <|end|><|end|>" in text
    end = tokenizer().special["<|end|>"]
    assert prompt.count(end) == first.count(end) + 2  # the turn and the result: none from the result's text


@pytest.mark.parametrize(
    ("tools", "use", "param", "words"),
    [
        ((WEATHER, WEATHER), REQUIRED, "tools[1].name", "two tools"),
        ((wire.ToolSpec(name="a b"),), REQUIRED, "tools[0].name", "letters"),
        ((wire.ToolSpec(name="a", parameters="{"),), REQUIRED, "tools[0].parameters", "JSON"),
        ((wire.ToolSpec(name="a", parameters="[]"),), REQUIRED, "tools[0].parameters", "object"),
        ((wire.ToolSpec(name="a", parameters='{"type": "string"}'),), REQUIRED, "tools[0].parameters", "object"),
        ((wire.ToolSpec(name="a", parameters='{"a":' * 150 + "1" + "}" * 150),), REQUIRED, "tools[0].parameters", "deep"),
        ((wire.ToolSpec(name="a", parameters='{"a":' * 9500 + "1" + "}" * 9500),), REQUIRED, "tools[0].parameters", "JSON"),
        ((wire.ToolSpec(name="a", parameters='{"a": "\\ud800"}'),), REQUIRED, "tools[0].parameters", "JSON"),
        ((wire.ToolSpec(name="a", parameters='{"a": NaN}'),), REQUIRED, "tools[0].parameters", "JSON"),
        ((wire.ToolSpec(name="a", description="x" * 600_000),), REQUIRED, "tools", "at most"),
        (tuple(wire.ToolSpec(name=f"a{n}") for n in range(129)), REQUIRED, "tools", "at most 128"),
        ((WEATHER,), wire.ToolUse(names=("other",)), "tool_choice", "no tool 'other'"),
        ((), REQUIRED, "tool_choice", "no tools"),
    ],
)
def test_what_is_refused(tools: tuple[wire.ToolSpec, ...], use: wire.ToolUse, param: str, words: str) -> None:
    w = world().send(
        wire.Open(program=0, seed=1),
        wire.Append(program=0, op=0, branch=0, parts=(wire.Text(text="hello"),), role="user"),
        wire.Tools(program=0, op=1, branch=0, tools=tools),
        gen(2, tool_use=use),
    )
    failed = w.of(wire.Failed)[-1]
    assert (failed.op, failed.status, failed.param) == (2 if failed.code == "skipped" else failed.op, 400, param)
    assert words in w.of(wire.Failed)[0].message


def test_an_error_of_the_compiler_is_put_to_the_tool_it_is_about() -> None:
    class Refuses(FakeCompiler):
        def submit(self, ticket: int, constraint: wire.Constraint | Composite, tenant: str) -> None:
            self.answers.append(CompileFailed(ticket, "tool 'get_time': /properties/x: keyword 'not' can't be enforced"))

    w = opened()
    w.compiler.submit = Refuses.submit.__get__(w.compiler)  # type: ignore[method-assign]
    w.send(gen(2, tool_use=REQUIRED))
    failed = w.one(wire.Failed)
    assert (failed.op, failed.status, failed.code, failed.param) == (2, 400, "invalid_grammar", "tools[1].parameters")
    assert "get_time" in failed.message


def test_the_grammar_is_asked_for_once_and_holds_the_chosen_tools() -> None:
    w = opened()
    w.runtime.scripts += [says(CALL), says(CALL)]
    use = wire.ToolUse(mode="required", names=("get_weather",))
    w.send(gen(2, tool_use=use), gen(3, tool_use=use))
    (composite,) = w.compiler.submitted
    assert isinstance(composite, Composite)
    assert [part.label for part in composite.parts] == ["tool 'get_weather'"]


def test_stop_strings_have_no_place_in_an_output_of_calls_alone() -> None:
    w = opened(gen(2, tool_use=REQUIRED, sampling=wire.Sampling(stop=("}",))))
    assert w.sent_generations()[-1].sampling.stop == ()


def test_a_model_without_a_format_says_so() -> None:
    w = World(text=text_model()).send(
        wire.Open(program=0, seed=1),
        wire.Append(program=0, op=0, branch=0, parts=(wire.Text(text="hello"),), role="user"),
        wire.Tools(program=0, op=1, branch=0, tools=(WEATHER,)),
        gen(2, tool_use=REQUIRED),
    )
    failed = w.one(wire.Failed)
    assert (failed.status, failed.code) == (400, "unsupported")


# ---- reasoning -----------------------------------------------------------------------------------------------------

THINKS = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}")


def thinking(*, opens: bool = False) -> World:
    source = THINKS.replace("enable_thinking", "true" if opens else "false")
    format = Hermes(tokenizer().special)
    marks = ReasoningMarks(Mark("<think>"), Mark("</think>"))
    w = World(text=TextModel(tokenizer(), ChatTemplate(source, tokenizer(), format), format, marks))
    return w.send(
        wire.Open(program=0, seed=1),
        wire.Append(program=0, op=0, branch=0, parts=(wire.Text(text="<think> hello"),), role="user"),
        wire.Tools(program=0, op=1, branch=0, tools=(WEATHER,)),
    )


HERMES_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_told_apart(opens: bool, stream: bool) -> None:
    w = thinking(opens=opens)
    begin = "" if opens else "<think>"
    w.runtime.scripts.append(says(f"{begin}\nHm, <tool_call>?", "\n</thi", "nk>\n\n", HERMES_CALL))
    w.send(gen(2, tool_use=wire.ToolUse(), stream=stream))
    done = w.one(wire.Done)
    assert (done.reasoning, done.value, done.finish_reason) == ("Hm, <tool_call>?", "", "tool_calls")
    assert [call.arguments for call in done.calls] == ['{"city": "Oslo"}']
    if stream:
        assert "".join(delta.reasoning for delta in w.of(wire.Delta)) == done.reasoning
        assert [id for delta in w.of(wire.Delta) for id in delta.token_ids] == list(done.token_ids)


def test_reasoning_stays_in_the_text_where_it_is_not_parsed() -> None:
    w = thinking()
    w.runtime.scripts.append(says("<think>a</think>b"))
    w.send(gen(2, parse_reasoning=False))
    done = w.one(wire.Done)
    assert (done.reasoning, done.value) == ("", "<think>a</think>b")


def test_a_second_generation_of_a_turn_goes_on_where_the_first_ended() -> None:
    w = thinking(opens=True)
    w.runtime.scripts += [says("Hm", reason="length"), says(" so.</think>Yes", reason="length"), says(" <think>!")]
    w.send(gen(2), gen(3), gen(4))
    assert [(done.reasoning, done.value) for done in w.of(wire.Done)] == [("Hm", ""), ("so.", "Yes"), ("", " <think>!")]


@pytest.mark.parametrize(("opens", "parse", "has_part"), [(True, True, True), (False, True, True), (True, False, False)])
def test_a_constraint_applies_after_reasoning(opens: bool, parse: bool, has_part: bool) -> None:
    w = thinking(opens=opens)
    constraint = wire.Constraint(kind="regex", source="(yes|no)")
    w.send(gen(2, constraint=constraint, parse_reasoning=parse))
    (asked,) = w.compiler.submitted
    assert isinstance(asked, Composite) == has_part
    if isinstance(asked, Composite):
        assert asked.parts[0].label == "constraint"
        assert ("?" in asked.text.partition("reasoning ::= ")[2].partition("\n")[0]) == (not opens)
