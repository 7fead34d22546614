"""What a plan's grammar lets through is what its reader takes apart: calls with valid arguments, or text, or the format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from radixserve_tokenizer.grammar.compiler import CompileError
from radixserve_tokenizer.protocol import Constraint, ToolSpec, ToolUse
from radixserve_tokenizer.text.tokenizer import Control, TextTokenizer
from radixserve_tokenizer.tools.choose import FORMATS
from radixserve_tokenizer.tools.errors import ToolError
from radixserve_tokenizer.tools.marks import Mark
from radixserve_tokenizer.tools.plan import OutputPlan, plan_output
from radixserve_tokenizer.tools.reasoning import ReasoningMarks
from radixserve_tokenizer.tools.toolset import ToolSet, read_tools
from tests.tokenizer.programs.harness import tokenizer as small_tokenizer
from tests.tokenizer.tools.conftest import EOS, SPECIAL, VOCABULARY

if TYPE_CHECKING:
    from radixserve_tokenizer.tools.format import ToolFormat
    from radixserve_tokenizer.tools.reader import OutputReader
    from radixserve_tokenizer.tools.reasoning import Stage
    from tests.tokenizer.tools.conftest import Sentences

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
        },
    },
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "stop": NOTHING}


def tools() -> ToolSet:
    return read_tools([ToolSpec(name=name, parameters=json.dumps(schema)) for name, schema in SCHEMAS.items()])


@pytest.fixture(params=list(FORMATS))
def format(request: pytest.FixtureRequest) -> ToolFormat:
    return FORMATS[request.param](SPECIAL)


def tokenizer() -> TextTokenizer:
    control = {text: Control(id) for text, id in SPECIAL.items()}
    return TextTokenizer(small_tokenizer()._engine, VOCABULARY, control, eos_token_ids=[EOS])


def read(plan: OutputPlan, ids: list[int]) -> tuple[str, OutputReader]:
    reader = plan.reader(tokenizer(), "place", b"", None)
    text = "".join(reader.feed([id]) for id in ids)
    return text + reader.finish(), reader


def plan(
    format: ToolFormat, mode: str, *, parallel: bool = True, constraint: Constraint | None = None, names: tuple[str, ...] = ()
) -> OutputPlan:
    return plan_output(constraint, ToolUse(mode=mode, parallel=parallel, names=names), tools(), format, None, "after")  # type: ignore[arg-type]


def check(reader: OutputReader) -> None:
    for call in reader.calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls(sentences: Sentences, format: ToolFormat, parallel: bool) -> None:
    wanted = plan(format, "required", parallel=parallel)
    assert wanted.grammar is not None
    most = 0
    for seed in range(20):
        ids, ended = sentences.draw(wanted.grammar, seed)
        text, reader = read(wanted, ids)
        assert text == ""
        check(reader)
        if ended:
            most = max(most, len(reader.calls))
            assert reader.calls
    assert most >= 2 if parallel and format.max_calls > 1 else most == 1


def test_auto_is_text_or_calls(sentences: Sentences, format: ToolFormat) -> None:
    wanted = plan(format, "auto")
    assert wanted.grammar is not None
    assert sentences.accepts(wanted.grammar, "")
    assert sentences.accepts(wanted.grammar, "I do not know. {} [] < </tool_call>")
    for seed in range(20):
        ids, _ = sentences.draw(wanted.grammar, seed, 60)
        check(read(wanted, ids)[1])


def test_a_call_or_the_format(sentences: Sentences, format: ToolFormat) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    wanted = plan(format, "auto", constraint=Constraint(kind="json_schema", source=json.dumps(schema)))
    assert wanted.grammar is not None
    assert sentences.accepts(wanted.grammar, '{"answer": 42}')
    assert not sentences.accepts(wanted.grammar, "42")
    kinds: set[bool] = set()
    for seed in range(30):
        ids, ended = sentences.draw(wanted.grammar, seed)
        text, reader = read(wanted, ids)
        check(reader)
        if ended:
            kinds.add(bool(reader.calls))
            assert bool(reader.calls) or jsonschema.validate(json.loads(text), schema) is None
    assert kinds == {True, False}


def test_only_the_tools_that_are_named(sentences: Sentences, format: ToolFormat) -> None:
    wanted = plan(format, "required", names=("stop",), parallel=False)
    assert wanted.grammar is not None
    for seed in range(3):
        ids, ended = sentences.draw(wanted.grammar, seed)
        assert ended
        assert [(call.name, call.arguments) for call in read(wanted, ids)[1].calls] == [("stop", "{}")]


def test_many_tools_share_what_their_grammars_have_in_common(sentences: Sentences) -> None:
    many = read_tools([ToolSpec(name=f"tool_{n}", parameters=json.dumps(WEATHER)) for n in range(40)])
    wanted = plan_output(None, ToolUse(mode="required"), many, FORMATS["hermes"](SPECIAL), None, "after")
    assert wanted.grammar is not None
    call = '<tool_call>\n{"name": "tool_39", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
    assert sentences.accepts(wanted.grammar, call)
    assert not sentences.accepts(wanted.grammar, call.replace("2}", "20}"))


def test_the_compiler_names_the_tool_and_the_place(sentences: Sentences) -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": "https://example.com/other.json"}}}
    bad = read_tools([ToolSpec(name="good"), ToolSpec(name="odd", parameters=json.dumps(schema))])

    def compile() -> None:
        wanted = plan_output(None, ToolUse(mode="required"), bad, FORMATS["hermes"](SPECIAL), None, "after")
        assert wanted.grammar is not None
        sentences.matcher(wanted.grammar)

    with pytest.raises((CompileError, ToolError)) as error:
        compile()
    for words in ("'odd'", "/properties/x", "$ref"):
        assert words in str(error.value)


@pytest.mark.parametrize("is_token", [True, False])
@pytest.mark.parametrize("stage", ["start", "inside", "after"])
def test_reasoning_comes_before_what_a_grammar_asks_for(sentences: Sentences, stage: Stage, is_token: bool) -> None:
    open_id, close_id = (SPECIAL["<think>"], SPECIAL["</think>"]) if is_token else (-1, -1)
    marks = ReasoningMarks(Mark("<think>", open_id), Mark("</think>", close_id))
    constraint = Constraint(kind="regex", source="(yes|no)")
    for use in (None, ToolUse()):
        format = FORMATS["mistral_args"](SPECIAL)
        wanted = plan_output(constraint, use, tools(), format, marks, stage)
        assert wanted.grammar is not None
        begin: list[str | int] = {"start": [open_id if is_token else "<think>"], "inside": [], "after": []}[stage]
        thought = [*begin, "\nHm {no} é\n", close_id if is_token else "</think>", "\n\n"]
        can_think = stage != "after"
        assert sentences.accepts(wanted.grammar, [*thought, "yes"]) == can_think
        assert not sentences.accepts(wanted.grammar, [*thought, "maybe"])
        assert not sentences.accepts(wanted.grammar, [*begin, "yes"] if can_think else "maybe")
        assert sentences.accepts(wanted.grammar, "no") == (stage != "inside")
        call: list[str | int] = [SPECIAL["[TOOL_CALLS]"], "stop", SPECIAL["[ARGS]"], "{}"]
        assert sentences.accepts(wanted.grammar, [*(thought if can_think else []), *call]) == (use is not None)


@pytest.mark.parametrize(
    ("format", "constraint", "clashes"),
    [
        ("hermes", Constraint(kind="regex", source="<b>.*"), True),
        ("hermes", Constraint(kind="regex", source="(a|[^a])b"), True),
        ("hermes", Constraint(kind="regex", source="x?y*<"), True),
        ("hermes", Constraint(kind="regex", source="(yes|no)<"), False),
        ("hermes", Constraint(kind="choice", source='["a", "<b"]'), True),
        ("hermes", Constraint(kind="choice", source='["a", "b<"]'), False),
        ("hermes", Constraint(kind="ebnf", source='root ::= "a"'), True),
        ("hermes", Constraint(kind="json_object"), False),
        ("mistral", Constraint(kind="regex", source=".*"), False),
        ("llama3", Constraint(kind="json_object"), False),
    ],
)
def test_a_constraint_that_could_begin_like_a_call_is_refused(format: str, constraint: Constraint, clashes: bool) -> None:
    def make() -> OutputPlan:
        return plan_output(constraint, ToolUse(), tools(), FORMATS[format](SPECIAL), None, "after")

    if clashes:
        with pytest.raises(ToolError, match="begin like a call"):
            make()
    else:
        assert make().use == "beside"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "$ref"),
        ({"type": "object", "properties": {"a>b": {}}}, "name"),
        ({"anyOf": [{"type": "object"}]}, "one by one"),
        ({"type": "object", "minProperties": 1}, "minProperties"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required"),
    ],
)
def test_what_qwen3_coder_can_not_write_is_refused(schema: dict[str, Any], words: str) -> None:
    odd = read_tools([ToolSpec(name="odd", parameters=json.dumps(schema))])
    with pytest.raises(ToolError, match="odd") as error:
        plan_output(None, ToolUse(mode="required"), odd, FORMATS["qwen3_coder"]({}), None, "after")
    assert words in error.value.message
