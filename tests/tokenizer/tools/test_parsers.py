"""One parser a format: recorded texts, cut in every way, say the same."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_tokenizer.protocol import ToolSpec
from radixserve_tokenizer.tools.choose import FORMATS
from radixserve_tokenizer.tools.marks import Mark
from radixserve_tokenizer.tools.reasoning import ReasoningMarks, ReasoningParser
from radixserve_tokenizer.tools.toolset import read_tools
from tests.tokenizer.tools.conftest import SPECIAL, Heard

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from radixserve_tokenizer.tools.format import ToolFormat, Use

TOOLS = read_tools(
    [
        ToolSpec(name="say", parameters=json.dumps({"type": "object", "properties": {"text": {"type": "string"}, "n": {}}})),
        ToolSpec(name="stop"),
    ]
).tools
#: Every end mark of every format, brackets, quotes and backslashes, in one string.
NASTY = '{"text": "</tool_call> [ARGS] <tool_call>\\n</parameter> [TOOL_CALLS] }]}, {\\"name\\": \\"x\\"} \\\\ é\U0001f600"}'


class Recorded(NamedTuple):
    """A recorded output; control tokens are written as they are, and are tokens only in the vocabularies that have them."""

    format: str
    text: str
    calls: list[tuple[str, str]]
    said: str = ""
    use: Use = "free"


RECORDED = [
    Recorded(
        "hermes",
        '<tool_call>\n{"name": "say", "arguments": {"text": "Zürich 😀"}}\n</tool_call>',
        [("say", '{"text": "Zürich 😀"}')],
    ),
    Recorded(
        "hermes",
        f'I say it.\n\n<tool_call>\n{{"name": "say", "arguments": {NASTY}}}\n</tool_call>',
        [("say", NASTY)],
        "I say it.",
    ),
    Recorded(
        "hermes",
        'é: <tool_call>{"name":"say","arguments":{"n":{"a":[{}, [1, {"b": null}]]}}}</tool_call>\n then \n<tool_call>\n'
        '{"arguments": {}, "name": "stop"}\n</tool_call>\nend',
        [("say", '{"n":{"a":[{}, [1, {"b": null}]]}}'), ("stop", "{}")],
        "é:thenend",
    ),
    Recorded("hermes", "a < b <tool_ call> <tool_cal", [], "a < b <tool_ call> <tool_cal"),
    Recorded("hermes", '<tool_call>\n{"name": "stop"}\n</tool_call>', [("stop", "{}")]),
    Recorded("hermes", ' \n<tool_call>\n{"name": "stop", "arguments": {}, "id": "x}"}\n</tool_call> ', [("stop", "{}")]),
    Recorded(
        "hermes", '<tool_call>\n{"name": "say", "arguments": {"text": "cut he', [("say", '{"text": "cut he')], use="required"
    ),
    Recorded(
        "smollm2",
        f'<tool_call>[{{"name": "say", "arguments": {NASTY}}}, {{"name": "stop", "arguments": {{}}}}]</tool_call>',
        [("say", NASTY), ("stop", "{}")],
    ),
    Recorded("smollm2", "No tool fits. <tool_call>[]</tool_call>", [], "No tool fits."),
    Recorded(
        "mistral",
        f'Well [TOOL_CALLS] [{{"name": "say", "arguments": {NASTY}}}, {{"name": "stop", "arguments": {{}}}}]',
        [("say", NASTY), ("stop", "{}")],
        "Well",
    ),
    Recorded(
        "mistral_args", f"Ünd [TOOL_CALLS]say[ARGS]{NASTY}[TOOL_CALLS]stop[ARGS]{{}}", [("say", NASTY), ("stop", "{}")], "Ünd"
    ),
    Recorded("llama3", f'{{"name": "say", "parameters": {NASTY}}}', [("say", NASTY)]),
    Recorded("llama3", f'<|python_tag|>{{"name": "say", "parameters": {NASTY}}}', [("say", NASTY)]),
    Recorded("llama3", '{"name" is a key}, {"name": "x"} ', [], '{"name" is a key}, {"name": "x"} '),
    Recorded("llama3", '{"name": "x"}', [], '{"name": "x"}', "beside"),
    Recorded("llama3", '{"nam', [], '{"nam'),
    Recorded(
        "qwen3_coder",
        'Now:\n<tool_call>\n<function=say>\n<parameter=text>\nline 1\n"q" \\ </parameter> </tool_call> é😀\t\n\n</parameter>\n'
        '<parameter=n>\n{"a": "\\n</parameter>"}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=stop>\n</function>\n</tool_call>',
        [
            ("say", '{"text": "line 1\\n\\"q\\" \\\\ </parameter> </tool_call> é😀\\t\\n", "n": {"a": "\\n</parameter>"}}'),
            ("stop", "{}"),
        ],
        "Now:",
    ),
    Recorded(
        "qwen3_coder",
        "<tool_call>\n<function=say>\n<parameter=text>\n\n</parameter>\n</function>\n</tool_call>",
        [("say", '{"text": ""}')],
    ),
]
IDS = [f"{each.format}-{index}" for index, each in enumerate(RECORDED)]


def units(text: str, special: dict[str, int], verbatim: Sequence[str] = (NASTY,)) -> list[bytes | str]:
    """The output in its smallest pieces: single bytes, and control tokens (as text), of which there are none inside `verbatim`."""
    out: list[bytes | str] = []
    while text:
        begin = next((each for each in verbatim if text.startswith(each)), "") or next(
            (mark for mark in special if text.startswith(mark)), text[0]
        )
        out += [begin] if begin in special else [bytes([byte]) for byte in begin.encode()]
        text = text[len(begin) :]
    return out


def hear(recorded: Recorded, format: ToolFormat, cuts: Iterable[int], pieces: Sequence[bytes | str]) -> Heard:
    """Feed the pieces, those between two cuts joined as far as they are bytes."""
    heard = Heard()
    parser = format.parser(heard, TOOLS, recorded.use)
    edges = [0, *cuts, len(pieces)]
    for begin, end in itertools.pairwise(edges):
        for is_bytes, run in itertools.groupby(pieces[begin:end], key=lambda piece: isinstance(piece, bytes)):
            if is_bytes:
                parser.feed(b"".join(piece for piece in run if isinstance(piece, bytes)))
            else:
                for mark in run:
                    parser.control(str(mark))
    parser.finish()
    return heard


def formatted(recorded: Recorded, vocabulary: str) -> tuple[ToolFormat, list[bytes | str]]:
    special = SPECIAL if vocabulary == "control tokens" else {}
    if not special and "<|python_tag|>" in recorded.text:
        pytest.skip("without its tag in the vocabulary the format has none")
    return FORMATS[recorded.format](special), units(recorded.text, special)


@pytest.mark.parametrize("vocabulary", ["control tokens", "text"])
@pytest.mark.parametrize("recorded", RECORDED, ids=IDS)
def test_reported_bug_15_recorded_texts_however_they_are_cut(recorded: Recorded, vocabulary: str) -> None:
    format, pieces = formatted(recorded, vocabulary)
    whole = hear(recorded, format, (), pieces)
    assert [(name, arguments.decode()) for name, arguments, _ in whole.calls] == recorded.calls
    assert whole.said.decode() == recorded.said
    assert all(done for _, _, done in whole.calls) == (recorded.use != "required")
    length = len(pieces)
    two = ((cut,) for cut in range(1, length))
    three = itertools.combinations(range(1, length), 2) if length <= 100 else ()  # the others: the next test
    rng = random.Random(0)
    some = (sorted(rng.sample(range(1, length), min(length - 1, rng.randint(1, 30)))) for _ in range(1000))
    for cuts in itertools.chain(two, three, some):
        assert hear(recorded, format, cuts, pieces) == whole, cuts


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", ["control tokens", "text"])
@pytest.mark.parametrize("recorded", RECORDED, ids=IDS)
def test_recorded_texts_cut_in_three_in_every_way(recorded: Recorded, vocabulary: str) -> None:
    format, pieces = formatted(recorded, vocabulary)
    whole = hear(recorded, format, (), pieces)
    for cuts in itertools.combinations(range(1, len(pieces)), 2):
        assert hear(recorded, format, cuts, pieces) == whole, cuts


@pytest.mark.parametrize("recorded", RECORDED, ids=IDS)
def test_an_output_that_is_cut_has_no_half_of_a_call_in_its_text(recorded: Recorded) -> None:
    format = FORMATS[recorded.format](SPECIAL)
    pieces = units(recorded.text, SPECIAL)
    for length in range(len(pieces)):
        heard = hear(recorded, format, (), pieces[:length])
        whole = [(name, arguments.decode()) for name, arguments, done in heard.calls if done]
        assert whole == recorded.calls[: len(whole)]
        said = heard.said.decode("utf-8", "ignore").strip()
        # What may still become the mark is text until it does: the end of an output tells.
        assert (
            recorded.said.startswith(said)
            or any(said.endswith(mark) for mark in ("<", "<t", "<to", "<too", "<tool"))
            or ("tool_call>".startswith(said.rpartition("<")[2]) or '{"name": "'.startswith(said))
        )


def arguments() -> st.SearchStrategy[dict[str, Any]]:
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.sampled_from(["</tool_call>", "}]", '"', "\\"])
    )
    value = st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8
    )
    return st.dictionaries(st.text(max_size=8), value, max_size=4)


@pytest.mark.parametrize("name", ["hermes", "smollm2", "mistral", "mistral_args", "llama3"])
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_a_format_writes_it_reads(name: str, data: st.DataObject) -> None:
    special = data.draw(st.sampled_from([{}, SPECIAL]))
    format = FORMATS[name](special)
    most = 1 if format.max_calls == 1 else 3
    calls = [(f"tool_{index}", each) for index, each in enumerate(data.draw(st.lists(arguments(), min_size=1, max_size=most)))]
    texts = [(tool, json.dumps(each, ensure_ascii=data.draw(st.booleans()))) for tool, each in calls]
    pieces = units(format.calls_text(texts), special, [text for _, text in texts])
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(pieces) - 1)), max_size=10)))
    heard = hear(Recorded(name, "", []), format, cuts, pieces)
    assert [(tool, text.decode(), done) for tool, text, done in heard.calls] == [(tool, text, True) for tool, text in texts]


# ---- reasoning -----------------------------------------------------------------------------------------------------

THOUGHT = [
    ("start", "<think>\nHm, é <tool_call>?\n</think>\n\nYes.", "Hm, é <tool_call>?", "Yes."),
    ("start", "Yes. <think>no</think>", "", "Yes. <think>no</think>"),
    ("start", "<thin", "", "<thin"),
    ("start", " \n", "", " \n"),
    ("inside", "Hm.\n</think>\n{}", "Hm.", "{}"),
    ("inside", "Hm, endless </thin", "Hm, endless </thin", ""),
    ("inside", "</think>", "", ""),
    ("after", "<think>a</think>b", "", "<think>a</think>b"),
]


@pytest.mark.parametrize("is_token", [True, False])
@pytest.mark.parametrize(("stage", "text", "thought", "said"), THOUGHT)
def test_reasoning_however_it_is_cut(stage: str, text: str, thought: str, said: str, is_token: bool) -> None:
    special = {mark: id for mark, id in SPECIAL.items() if is_token and "think" in mark}
    if is_token and stage != "inside" and said.count("think"):
        pytest.skip("a control token has no text")
    marks = ReasoningMarks(Mark("<think>", special.get("<think>", -1)), Mark("</think>", special.get("</think>", -1)))
    pieces = units(text, special)

    def hear_all(cuts: Sequence[int]) -> Heard:
        heard = Heard()
        call_parser = FORMATS["hermes"]({}).parser(heard, TOOLS, "free")
        parser = ReasoningParser(marks, stage, heard.reasoning, call_parser)  # type: ignore[arg-type]
        for begin, end in itertools.pairwise([0, *cuts, len(pieces)]):
            for piece in (
                pieces[begin:end] if is_token else [b"".join(each for each in pieces[begin:end] if isinstance(each, bytes))]
            ):
                parser.feed(piece) if isinstance(piece, bytes) else parser.control(piece)
        parser.finish()
        return heard

    whole = hear_all(())
    assert (whole.thought.decode(), whole.said.decode()) == (thought, said)
    for cuts in itertools.chain(((cut,) for cut in range(1, len(pieces))), itertools.combinations(range(1, len(pieces)), 2)):
        assert hear_all(cuts) == whole, cuts
