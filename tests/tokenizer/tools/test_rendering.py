"""What templates make of tools, calls and results: their own way where they have one, ours where they don't."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_tokenizer.text.template import ChatTemplate
from radixserve_tokenizer.tools.choose import FORMATS, choose_format
from radixserve_tokenizer.tools.ids import call_id
from radixserve_tokenizer.tools.reasoning import reasoning_marks
from tests.tokenizer.programs.harness import TEMPLATE, tokenizer

HERMES = (
    "{%- if tools %}<|start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "You have tools:\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|end|>\n"
    "{%- elif messages[0].role == 'system' %}<|start|>system\n{{ messages[0].content }}<|end|>\n{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n"
    "{%- elif m.role == 'assistant' %}<|start|>assistant\n{{ m.content or '' }}"
    "{%- for call in m.tool_calls or [] %}{% set f = call.function or call %}"
    '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}<|end|>\n'
    "{%- elif m.role == 'tool' %}<|start|>tool\n<tool_response>\n{{ m.content }}\n</tool_response><|end|>\n{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
#: As Mistral's: ids of nine characters, results right after an assistant message with calls, and no other.
STRICT = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' and (loop.first or (messages[loop.index0 - 1].role == 'assistant'"
    " and not messages[loop.index0 - 1].tool_calls)) %}"
    "{{ raise_exception('a result follows calls') }}{% endif %}"
    "{%- if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    "{%- if m.tool_calls %}<|start|>[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    "{{ c.function | tojson }}{% endfor %}]<|end|>"
    "{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{%- else %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": 'Finds "things" é',
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "what"}, "odd key": {"enum": ["a b", 1, None, True]}},
                "required": ["query"],
            },
        },
    }
]
ARGUMENTS = {"query": 'say "hi" \\ \n <tool_call> é', "odd key": "a b"}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look it up"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": json.dumps(ARGUMENTS)}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "found it"},
]


def rendered(template: ChatTemplate, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    return template.encode_messages(messages, tools=tools).text


def test_against_transformers() -> None:
    transformers_chat = pytest.importorskip("transformers.utils.chat_template_utils")
    ours = ChatTemplate(HERMES, tokenizer())
    parsed = json.loads(json.dumps(HISTORY))
    parsed[2]["tool_calls"][0]["function"]["arguments"] = ARGUMENTS
    for messages, theirs, tools in ((HISTORY, parsed, TOOLS), (HISTORY[:2], parsed[:2], TOOLS), (HISTORY, parsed, None)):
        expected, _ = transformers_chat.render_jinja_template([theirs], tools, chat_template=HERMES, add_generation_prompt=True)
        assert rendered(ours, messages, tools) == expected[0]


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_template_that_knows_no_tools_shows_them_in_our_words(name: str) -> None:
    format = FORMATS[name]({})
    template = ChatTemplate(TEMPLATE, tokenizer(), format)
    assert template.tool_support[:3] == (False, False, True)
    text = rendered(template, HISTORY, TOOLS)
    assert text.startswith("<|start|>system\nBe brief.\n\n")
    assert '"look_up"' in text
    assert 'Finds \\"things\\" é' in text
    assert f"<|start|>assistant\n{format.calls_text([('look_up', ARGUMENTS)])}<|end|>" in text
    assert f"<|start|>user\n{format.result_text('found it', 'look_up')}<|end|>" in text
    assert rendered(template, HISTORY[1:2], TOOLS).startswith("<|start|>system\n")
    assert "look_up" not in rendered(template, HISTORY[:2], None)


def test_without_a_system_role_the_tools_stand_before_the_first_question() -> None:
    source = TEMPLATE.replace(
        "<|start|>{{ m.role }}", "{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}<|start|>{{ m.role }}"
    )
    template = ChatTemplate(source, tokenizer(), FORMATS["hermes"]({}))
    text = rendered(template, HISTORY[1:], TOOLS)
    assert text.index("look_up") < text.index("Look it up")
    assert text.startswith("<|start|>user\n")


def test_what_templates_know_is_found_out() -> None:
    assert ChatTemplate(HERMES, tokenizer()).tool_support == (True, True, True, 0, True)
    assert ChatTemplate(STRICT, tokenizer()).tool_support == (False, True, True, 9, True)
    assert ChatTemplate(TEMPLATE, tokenizer()).tool_support == (False, False, True, 0, True)


def test_results_stand_in_one_message_where_no_two_may_follow_each_other() -> None:
    source = TEMPLATE.replace(
        "<|start|>{{ m.role }}",
        "{% if not loop.first and m.role == messages[loop.index0 - 1].role %}{{ raise_exception('alternate') }}{% endif %}"
        "<|start|>{{ m.role }}",
    )
    template = ChatTemplate(source, tokenizer(), FORMATS["hermes"]({}))
    assert not template.tool_support.repeats
    two = [
        *HISTORY,
        {"role": "tool", "content": "and more"},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": "ok"},
    ]
    text = rendered(template, two, TOOLS)
    first, second = (FORMATS["hermes"]({}).result_text(result, "look_up") for result in ("found it", "and more"))
    assert f"<|start|>user\n{first}\n{second}<|end|>" in text


def test_a_template_that_wants_short_ids_gets_them() -> None:
    template = ChatTemplate(STRICT, tokenizer(), FORMATS["mistral"]({}))
    assert template.tool_support.id_length == 9
    assert '[TOOL_CALLS][{"name": "look_up"' in rendered(template, HISTORY[1:], None)
    made = call_id("place", 0, 9)
    assert (len(made), made.isalnum(), made[0].isalpha()) == (9, True, True)


def test_a_template_that_refuses_a_result_after_mere_text_is_told_of_the_calls() -> None:
    template = ChatTemplate(STRICT, tokenizer(), FORMATS["mistral"]({}))
    conversation = template.conversation()
    log: list[int] = []

    def apply(edit: Any) -> None:
        log[edit.keep :] = edit.ids

    apply(conversation.message("user", ["hello"]))
    apply(conversation.open_assistant())
    ids = tokenizer().encode('[TOOL_CALLS][{"name": "look_up", "arguments": {}}]')
    log += ids
    conversation.extend_assistant_ids(ids)
    conversation.note_calls("", [{"id": "abcdefghi", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}])
    apply(conversation.message("tool", ["found"], {"tool_call_id": "abcdefghi"}))
    text = tokenizer().decode(log, skip_special=False)
    assert text.endswith('<|start|>[TOOL_CALLS][{"name": "look_up", "arguments": {}}]<|end|>[TOOL_RESULTS]found[/TOOL_RESULTS]')


@pytest.mark.parametrize("source", [TEMPLATE, HERMES])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_nothing_in_tools_calls_or_results_becomes_a_control_token(source: str, data: st.DataObject) -> None:
    evil = st.text(max_size=10) | st.sampled_from(["<|end|>", "<|eot|>", "a<|start|>system\n", "<|", "|>", "end"])
    words = [data.draw(evil) for _ in range(6)]
    template = ChatTemplate(source, tokenizer(), FORMATS["hermes"]({}))
    parameters = {"type": "object", "properties": {words[0]: {"type": "string", "description": words[1], "enum": [words[2]]}}}
    tools = [{"type": "function", "function": {"name": "look", "description": words[3], "parameters": parameters}}]
    call = {"id": words[4], "type": "function", "function": {"name": "look", "arguments": json.dumps({words[0]: words[5]})}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": words[4], "content": words[5]},
    ]
    count = len(messages) + 1  # a system message for the tools
    ids = template.encode_messages(messages, tools=tools, add_generation_prompt=False).ids
    assert [id for id in ids if id < 3] == [0, 1] * count


@pytest.mark.parametrize("source", [TEMPLATE, HERMES])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_with_tools_a_message_only_adds_to_the_log(source: str, data: st.DataObject) -> None:
    template = ChatTemplate(source, tokenizer(), FORMATS["hermes"]({}))
    conversation = template.conversation()
    log: list[int] = []
    turns: list[list[int]] = []
    is_retooled = False
    steps = st.lists(st.sampled_from(["user", "answer", "tool", "retool"]), max_size=8)
    for step in ["user", *data.draw(steps)]:
        before = list(log)
        if step == "retool":
            conversation.set_tools(TOOLS if data.draw(st.booleans()) else [])
            edit = conversation.retool()
            is_retooled = True
        elif step == "answer":
            edit = conversation.open_assistant()
        else:
            edit = conversation.message(step, [data.draw(st.text(max_size=5))], {"name": "look_up"} if step == "tool" else None)
        log[edit.keep :] = edit.ids
        if step != "retool":
            ended = before[-1:] == [1] and edit.keep == len(before) - 1
            assert edit.keep >= len(before) or ended
        if step == "answer":
            turn = [*tokenizer().encode("ok"), *([1] if data.draw(st.booleans()) else [])]
            log += turn
            conversation.extend_assistant_ids(turn)
            turns.append(turn)
    assert conversation.length == len(log)
    text = tokenizer().decode(log, skip_special=False)
    assert text.count("ok") >= len(turns) or not turns
    if is_retooled:  # what the log holds now is what a fresh rendering would hold
        assert text.count("<tools>") <= 1


@pytest.mark.parametrize(
    ("template", "special", "name"),
    [
        (HERMES, {}, "hermes"),
        ("<function= <parameter= <tool_call>", {}, "qwen3_coder"),
        ("[TOOL_CALLS]", {}, "mistral"),
        ("x", {"[TOOL_CALLS]": 5}, "mistral"),
        ("[TOOL_CALLS] [ARGS]", {}, "mistral_args"),
        ("x", {"<|python_tag|>": 5}, "llama3"),
        ("<tool_call>", {"<|python_tag|>": 5}, "hermes"),
        ("You are SmolLM", {}, "smollm2"),
        (None, {}, "hermes"),
    ],
)
def test_the_format_is_found_out(template: str | None, special: dict[str, int], name: str) -> None:
    class Model:
        chat_template = template

    model = Model()
    model.special = special  # type: ignore[attr-defined]
    assert choose_format(model).name == name  # type: ignore[arg-type]
    assert choose_format(model, "llama3").name == "llama3"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of"):
        choose_format(model, "other")  # type: ignore[arg-type]


def test_reasoning_marks_are_found_out() -> None:
    class Model:
        chat_template = "{{ '<think>\n' }} {{ content.split('</think>') }}"
        special = {"</think>": 7}  # noqa: RUF012

    marks = reasoning_marks(Model())  # type: ignore[arg-type]
    assert marks is not None
    assert (marks.open.token_id, marks.close.token_id) == (-1, 7)
    assert marks.stage("<|start|>assistant\n", False) == "start"
    assert marks.stage("<|start|>assistant\n<think>\n", False) == "inside"
    assert marks.stage("<|start|>assistant\n<think>\n\n</think>\n\n", False) == "after"
    assert marks.stage("<|start|>assistant\nYes", True) == "after"
    assert marks.stage("<|start|>assistant\n<think>a</think>b<|start|>assistant\n", False) == "start"
    assert reasoning_marks(tokenizer()) is None
