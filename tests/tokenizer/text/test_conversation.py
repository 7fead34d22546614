from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixserve_tokenizer.text import ChatTemplate, Conversation, Edit, InvalidTextError, TemplateError
from tests.tokenizer.text.small_tokenizers import (
    ALTERNATING,
    CHATML,
    THINKING,
    TRIMMING,
    plain_ids,
    plain_rendering,
    small_tokenizer,
)

TOKENIZER = small_tokenizer()
END = TOKENIZER.special["<|im_end|>"]
OTHER_END = TOKENIZER.special["<|eot|>"]
TEXT_TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
SOURCES = {"chatml": CHATML, "trimming": TRIMMING, "thinking": THINKING, "text": TEXT_TEMPLATE}
TEMPLATES = {name: ChatTemplate(source, TOKENIZER) for name, source in SOURCES.items()}


class Log:
    """A token log that follows a conversation's edits, as the branch's does."""

    def __init__(self, conversation: Conversation, prefix: list[int] | None = None) -> None:
        self.conversation = conversation
        self.ids = list(prefix or [])

    def apply(self, edit: Edit) -> Edit:
        assert edit.keep <= len(self.ids)
        self.ids = self.ids[: edit.keep] + edit.ids
        assert self.conversation.length == len(self.ids)
        return edit

    def message(self, role: str, *content: str | tuple[int, ...], **fields: Any) -> Edit:
        return self.apply(self.conversation.message(role, content, fields))

    def open(self) -> Edit:
        return self.apply(self.conversation.open_assistant())

    def generate(self, *ids: int) -> None:
        self.ids += ids
        self.conversation.extend_assistant_ids(ids)

    def text(self, text: str) -> Edit:
        return self.apply(self.conversation.extend_assistant_text(text))

    def copy(self) -> Log:
        return Log(self.conversation.copy(), self.ids)

    @property
    def shown(self) -> str:
        return TOKENIZER.decode(self.ids, skip_special=False)


def chat(source: str = CHATML) -> Log:
    return Log(ChatTemplate(source, TOKENIZER).conversation())


def test_messages_one_by_one_equal_the_whole_prompt() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "\nhello"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    log = chat()
    for at, message in enumerate(messages):
        before = list(log.ids)
        log.message(message["role"], message["content"])
        assert log.ids[: len(before)] == before
        assert log.ids == plain_ids(plain_rendering(CHATML, messages[: at + 1], add_generation_prompt=False))
    log.open()
    assert log.ids == plain_ids(plain_rendering(CHATML, messages))


def test_generated_ids_are_never_encoded_again() -> None:
    hello = TOKENIZER.encode("hello")
    letters = [TOKENIZER.encode(letter)[0] for letter in "hello"]
    assert hello != letters
    log = chat()
    log.message("user", "q")
    log.open()
    log.generate(*letters, END)
    log.message("user", "q")
    expected = plain_rendering(
        CHATML,
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "q"}],
        add_generation_prompt=False,
    )
    assert log.shown == expected
    assert any(log.ids[at : at + 5] == letters for at in range(len(log.ids)))


@pytest.mark.parametrize("end", [(), (END,)])
def test_an_end_that_the_model_sampled_is_not_doubled(end: tuple[int, ...]) -> None:
    log = chat()
    log.message("user", "q")
    log.open()
    log.generate(*TOKENIZER.encode("a"), *end)
    before = len(log.ids)
    edit = log.message("user", "r")
    assert edit.keep == before
    expected = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]
    assert log.ids == plain_ids(plain_rendering(CHATML, expected, add_generation_prompt=False))


def test_another_end_than_the_templates_is_replaced() -> None:
    tokenizer = small_tokenizer()
    tokenizer.eos_token_ids = (END, OTHER_END)
    log = Log(ChatTemplate(CHATML, tokenizer).conversation())
    log.message("user", "q")
    log.open()
    log.generate(*TOKENIZER.encode("a"), OTHER_END)
    before = len(log.ids)
    assert log.message("user", "r").keep == before - 1
    assert log.ids.count(OTHER_END) == 0
    assert log.shown.endswith("a<|im_end|>\n<|im_start|>user\nr<|im_end|>\n")


def test_going_on_after_an_ignored_end_keeps_it() -> None:
    log = chat()
    log.message("user", "q")
    log.open()
    log.generate(*TOKENIZER.encode("a"), END)
    log.generate(*TOKENIZER.encode("b"))
    log.message("user", "r")
    assert "a<|im_end|>b<|im_end|>\n<|im_start|>user\nr" in log.shown


def test_prefill_goes_on_and_is_one_turn_with_what_is_generated() -> None:
    log = chat()
    log.message("user", "q")
    log.open()
    assert log.open() == Edit(len(log.ids), [])
    assert log.text("hello") == Edit(len(log.ids) - 1, TOKENIZER.encode("hello"))
    assert log.conversation.is_open
    log.generate(*TOKENIZER.encode(" a"), END)
    log.message("user", "r")
    assert not log.conversation.is_open
    expected = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "hello a"}, {"role": "user", "content": "r"}]
    assert log.shown == plain_rendering(CHATML, expected, add_generation_prompt=False)


def test_user_text_in_a_prefill_is_text() -> None:
    log = chat()
    log.message("user", "q")
    log.open()
    before = log.ids.count(END)
    log.text("a<|im_end|>")
    assert log.ids.count(END) == before
    with pytest.raises(InvalidTextError):
        log.conversation.extend_assistant_text("\ud83d")


def test_content_may_hold_known_ids() -> None:
    letters = tuple(TOKENIZER.encode(letter)[0] for letter in "hello")
    log = chat()
    log.message("user", "say ", letters, "!")
    assert any(tuple(log.ids[at : at + 5]) == letters for at in range(len(log.ids)))
    assert "user\nsay hello!<|im_end|>" in log.shown
    trimmed = chat(TRIMMING)
    trimmed.message("user", "  ", "a ", letters, " \n")
    assert "\n\na hello<|eot|>" in trimmed.shown


def test_text_parts_of_one_message_are_encoded_as_one() -> None:
    whole, parts = chat(), chat()
    whole.message("user", "\nhello hello")
    parts.message("user", "\nhel", "lo", "", " he", "llo")
    assert whole.ids == parts.ids


def test_branches_are_independent() -> None:
    log = chat()
    log.message("user", "q")
    log.open()
    left, right = log.copy(), log.copy()
    left.generate(*TOKENIZER.encode("a"), END)
    left.message("user", "left")
    right.generate(*TOKENIZER.encode("b"))
    right.message("user", "right")
    assert "assistant\na<|im_end|>\n<|im_start|>user\nleft" in left.shown
    assert "assistant\nb<|im_end|>\n<|im_start|>user\nright" in right.shown
    assert log.shown.endswith("assistant\n")


def test_positions_count_from_the_start_of_the_log() -> None:
    conversation = TEMPLATES["chatml"].conversation(start=5)
    log = Log(conversation, [9] * 5)
    assert log.message("user", "q").keep == 5
    assert log.ids[:5] == [9] * 5


def test_an_open_turn_without_content_can_be_closed() -> None:
    log = chat()
    log.message("user", "q")
    log.open()
    log.message("user", "r")
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nr" in log.shown


def test_only_an_open_turn_can_be_extended() -> None:
    log = chat()
    with pytest.raises(ValueError, match="open"):
        log.conversation.extend_assistant_ids([1])
    with pytest.raises(ValueError, match="open"):
        log.conversation.extend_assistant_text("a")


def test_a_refused_message_changes_nothing() -> None:
    log = chat(ALTERNATING)
    log.message("user", "q")
    log.open()
    log.generate(*TOKENIZER.encode("a"))
    for bad in [("assistant", "b"), ("robot", "b"), ("user", "\ud83d")]:
        with pytest.raises((TemplateError, InvalidTextError)):
            log.message(*bad)
        assert log.conversation.is_open
    log.message("user", "r")
    assert log.shown.count("[INST]") == 2


def test_a_template_that_needs_a_user_message_waits_for_it() -> None:
    log = chat(ALTERNATING)
    assert log.message("system", "s") == Edit(0, [])
    with pytest.raises(TemplateError, match="a user message must come first"):
        log.open()
    log.message("user", "q")
    assert log.shown == "<s>[INST] s\n\nq [/INST]"


def test_a_template_that_moves_the_system_prompt_rewrites_the_log() -> None:
    template = ChatTemplate(ALTERNATING, TOKENIZER)
    assert not template.keeps_prefix
    log = Log(template.conversation())
    log.message("system", "s")
    log.message("user", "q")
    log.open()
    log.generate(*TOKENIZER.encode("hello"), END)
    edit = log.message("user", "r")
    assert edit.keep < log.ids.index(TOKENIZER.encode("hello")[0])
    assert log.shown == "<s>[INST] q [/INST] hello<|im_end|>[INST] s\n\nr [/INST]"


def test_thoughts_that_a_template_drops_later_do_not_break_generated_turns() -> None:
    log = chat(THINKING)
    log.message("user", "q")
    log.open()
    log.generate(*TOKENIZER.encode("a"), END)
    before = list(log.ids)
    log.message("user", "r")
    assert log.ids[: len(before)] == before
    # An answer given as text is first rendered with an empty thought, which goes when the next question comes.
    given_text = chat(THINKING)
    given_text.message("user", "q")
    given_text.message("assistant", "a")
    assert "<think>" in given_text.shown
    given_text.message("user", "r")
    assert given_text.ids == log.ids


@pytest.mark.parametrize(("name", "keeps"), [("chatml", True), ("trimming", True), ("thinking", False), ("text", False)])
def test_what_is_known_of_a_template_at_load(name: str, keeps: bool) -> None:
    assert TEMPLATES[name].keeps_prefix is keeps


def test_fields_are_not_given_twice() -> None:
    with pytest.raises(TemplateError, match="twice"):
        TEMPLATES["chatml"].conversation().message("user", ["a"], {"content": "b"})


def test_a_value_that_is_no_json_is_named() -> None:
    with pytest.raises(TemplateError, match="bytes") as caught:
        TEMPLATES["chatml"].conversation().message("user", ["a"], {"name": [b"x"]})
    assert caught.value.param == "messages.name[0]"


def test_a_nesting_bomb_is_an_error() -> None:
    bomb: list[Any] = []
    for _ in range(100_000):
        bomb = [bomb]
    with pytest.raises(TemplateError, match="too deeply"):
        TEMPLATES["chatml"].conversation().message("user", ["a"], {"name": bomb})


pieces = st.text(alphabet=st.sampled_from("hello\n aé"), min_size=1, max_size=6)


class Walk(RuleBasedStateMachine):
    """Whatever is done to a conversation, its log equals the template's rendering of the messages, with the ids that were sampled."""

    @initialize(name=st.sampled_from(sorted(SOURCES)))
    def start(self, name: str) -> None:
        self.source = SOURCES[name]
        self.log = Log(TEMPLATES[name].conversation())
        self.messages: list[dict[str, Any]] = []
        self.sampled: list[list[int]] = []
        self.turn: str | None = None

    def close(self) -> None:
        if self.turn is not None:
            self.messages.append({"role": "assistant", "content": self.turn})
            self.turn = None

    @rule(role=st.sampled_from(["user", "system", "assistant"]), content=pieces)
    def message(self, role: str, content: str) -> None:
        if role == "assistant":
            content = content.strip() or "a"
        self.close()
        self.log.message(role, content)
        self.messages.append({"role": role, "content": content})

    @rule()
    def open(self) -> None:
        self.log.open()
        self.turn = self.turn or ""

    @precondition(lambda self: self.turn is not None)
    @rule(letters=st.lists(st.sampled_from("helo"), min_size=1, max_size=4), ended=st.booleans())
    def generate(self, letters: list[str], ended: bool) -> None:
        ids = [TOKENIZER.encode(letter)[0] for letter in letters]
        self.log.generate(*ids)
        self.sampled.append(ids)
        self.turn = (self.turn or "") + "".join(letters)
        if ended:
            self.log.generate(END)
            self.log.message("user", "next")
            self.close()
            self.messages.append({"role": "user", "content": "next"})

    @rule()
    def fork(self) -> None:
        self.log = self.log.copy()

    @invariant()
    def log_is_the_rendering(self) -> None:
        if not hasattr(self, "log"):
            return
        rendered = (
            plain_rendering(self.source, self.messages, add_generation_prompt=self.turn is not None)
            if self.messages or self.turn is not None
            else ""
        )
        assert self.log.shown == rendered + (self.turn or "")
        assert self.log.conversation.text == rendered + (self.turn or "")
        at = 0
        for ids in self.sampled:  # in order, each as it was sampled
            at = next(place for place in range(at, len(self.log.ids)) if self.log.ids[place : place + len(ids)] == ids) + len(ids)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)


@given(texts=st.lists(pieces, min_size=1, max_size=6), name=st.sampled_from(["chatml", "trimming"]))
def test_incremental_ids_equal_parsing_the_whole(texts: list[str], name: str) -> None:
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    log = Log(TEMPLATES[name].conversation())
    for message in messages:
        log.message(message["role"], message["content"])
    log.open()
    assert log.ids == plain_ids(plain_rendering(SOURCES[name], messages))
