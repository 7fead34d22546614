"""Conversations of many messages: the work for one is linear in its size, and the tokens do not depend on how it arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve_runtime import protocol as rt
from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.transcript import TextModel
from radixserve_tokenizer.text.conversation import Conversation
from radixserve_tokenizer.text.jinja import Renderer
from radixserve_tokenizer.text.template import ChatTemplate
from radixserve_tokenizer.tools.jsonformats import SmolLM2
from tests.tokenizer.programs.harness import TEMPLATE, FakeRuntime, World, append, encode, gen, says, token, tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

ALTERNATING = (
    "{% for m in messages %}{% if m.role != 'system' and (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (  # it leaves out all but the last answer
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if m.role != 'assistant' or loop.index0 >= messages | length - 2 else '...' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def new_world(template: str = TEMPLATE, max_context: int = 1 << 20) -> World:
    format_ = SmolLM2(tokenizer().special)
    text = TextModel(tokenizer(), ChatTemplate(template, tokenizer(), format_), format_)
    return World(runtime=FakeRuntime(max_context=max_context), text=text)


def prompt_of(it: World) -> list[int]:
    return it.runtime.prompts[it.sent(rt.Generate)[-1].request_id]


class Work:
    """What is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_rendered = self.num_copied = 0
        render, copy = Renderer.render, Conversation.copy

        def counted_render(renderer: Renderer, messages: Sequence[Any], **more: Any) -> str:
            self.num_rendered += len(messages)
            return render(renderer, messages, **more)

        def counted_copy(conversation: Conversation) -> Conversation:
            self.num_copied += len(conversation._messages) + len(conversation._marks)
            return copy(conversation)

        monkeypatch.setattr(Renderer, "render", counted_render)
        monkeypatch.setattr(Conversation, "copy", counted_copy)


def talk(count: int) -> list[tuple[str, str]]:
    return [("user" if number % 2 == 0 else "assistant", f"message {number}") for number in range(count)]


@pytest.mark.parametrize("known", [False, True])
def test_work_is_linear(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Whether the engine remembers the answers in it or not."""
    it = new_world()
    if known:
        monkeypatch.setattr(it.core.services.memory, "recall", lambda owner, place, turn: tuple(encode(turn.text)))
    work = Work(monkeypatch)
    count = 1000
    ops = [append(number, text, role=role, program=1) for number, (role, text) in enumerate(talk(count))]
    it.send(wire.Open(program=1), *ops, gen(count, program=1))
    assert len(prompt_of(it)) > count
    assert work.num_rendered <= 3 * count
    assert work.num_copied <= 3 * count


def test_every_request_of_a_growing_conversation_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    it = new_world()
    work = Work(monkeypatch)
    turns: list[tuple[str, str]] = []
    for number in range(60):
        it.runtime.scripts.append(says(f"answer {number}"))
        turns.append(("user", f"question {number}"))
        work.num_rendered = work.num_copied = 0
        ops = [append(index, text, role=role, program=number) for index, (role, text) in enumerate(turns)]
        it.send(wire.Open(program=number), *ops, gen(len(turns), program=number), wire.Close(program=number))
        assert work.num_rendered <= 3 * len(turns)
        assert work.num_copied <= 4 * len(turns)
        turns.append(("assistant", f"answer {number}"))


def test_much_text_is_encoded_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that others are served in between; the tokens are the same."""
    it = new_world()
    work = Work(monkeypatch)
    ops = [append(number, "hello world " * 1000, role="user", program=1) for number in range(20)]
    it.send(wire.Open(program=1), *ops, gen(20, program=1))
    assert 40 < work.num_rendered < 120
    whole = prompt_of(it)
    monkeypatch.setattr("radixserve_tokenizer.programs.transcript.MAX_WAITING_CHARS", 1 << 30)
    other = new_world()
    work.num_rendered = 0
    other.send(wire.Open(program=1), *ops, gen(20, program=1))
    assert prompt_of(other) == whole
    assert work.num_rendered == 40


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGE: st.SearchStrategy[tuple[str, str, dict[str, Any]]] = st.one_of(
    st.tuples(
        st.sampled_from(["user", "assistant", "system", "tool"]), st.sampled_from(["", "a", "hello world", " x "]), st.just({})
    ),
    st.tuples(st.just("assistant"), st.sampled_from(["", "a"]), st.just({"tool_calls": [CALL]})),
    st.tuples(st.just(""), st.sampled_from(["raw", " text"]), st.just({})),
)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([TEMPLATE, FORGETFUL, ALTERNATING]),
    st.lists(MESSAGE, min_size=1, max_size=8),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.booleans(),
)
def test_how_messages_arrive_does_not_change_the_tokens(
    template: str, messages: list[tuple[str, str, dict[str, Any]]], cuts: list[bool], known: bool
) -> None:
    def run(cuts: Sequence[bool]) -> Any:
        it = new_world(template)
        if known:
            it.core.services.memory.recall = lambda owner, place, turn: tuple(encode(turn.text)) if turn.text else ()  # type: ignore[method-assign]
        frame: list[wire.FromClient] = [wire.Open(program=1)]
        for number, (role, text, fields) in enumerate(messages):
            frame.append(append(number, text, role=role, program=1, **fields))
            if cuts[number]:
                it.send(*frame)
                frame = []
        it.send(*frame, gen(len(messages), program=1))
        failed = it.of(wire.Failed)
        return [one.message.split("failed: ")[-1] for one in failed][-1:] if failed else prompt_of(it)

    assert run(cuts) == run([True] * 8) == run([False] * 8)


def test_a_message_that_the_template_refuses_fails_and_can_be_taken_back() -> None:
    it = new_world(ALTERNATING)
    ops = [append(number, "x", role=role, program=1) for number, role in enumerate(["user", "assistant", "assistant", "user"])]
    it.send(wire.Open(program=1), *ops, gen(4, var=0, program=1))
    failed = it.one(wire.Failed)
    assert "roles must alternate" in failed.message
    assert (failed.op, failed.status, failed.param) == (4, 400, "messages")
    it.send(wire.Rollback(program=1, op=5, branch=0, to_op=2), append(6, "y", role="user", program=1), gen(7, var=1, program=1))
    assert it.of(wire.Done)
    plain = new_world(ALTERNATING)
    kept = [
        append(number, text, role=role, program=1)
        for number, (role, text) in enumerate([("user", "x"), ("assistant", "x"), ("user", "y")])
    ]
    plain.send(wire.Open(program=1), *kept, gen(3, program=1))
    assert prompt_of(it) == prompt_of(plain)


def test_going_back_into_messages_that_were_rendered_together() -> None:
    it = new_world()
    ops = [append(number, f"m{number}", role="user", program=1) for number in range(4)]
    it.send(wire.Open(program=1), *ops)
    it.send(wire.Rollback(program=1, op=4, branch=0, to_op=2), gen(5, program=1))
    plain = new_world()
    plain.send(wire.Open(program=1), *ops[:2], gen(2, program=1))
    assert prompt_of(it) == prompt_of(plain)
    forked = new_world()
    forked.send(wire.Open(program=1), *ops)
    forked.send(wire.Rollback(program=1, op=4, branch=0, to_op=2), wire.Fork(program=1, op=5, branch=0, first=1, count=1))
    forked.send(gen(6, branch=1, program=1))
    assert prompt_of(forked) == prompt_of(plain)


def test_a_turn_that_was_forgotten_costs_only_itself() -> None:
    """Later answers are found by what was said before them, not by how it was encoded."""
    it = new_world()
    odd = tuple(token(piece) for piece in "ABC hello")
    assert odd != tuple(encode("ABC hello"))
    asked: list[tuple[str, str]] = []
    for number in range(2):
        it.runtime.scripts.append(says(odd))
        asked.append(("user", f"q{number}"))
        ops = [append(index, text, role=role, program=number) for index, (role, text) in enumerate(asked)]
        it.send(wire.Open(program=number), *ops, gen(len(asked), program=number))
        asked.append(("assistant", "ABC hello"))
    memory = it.core.services.memory
    own = memory._by_tenant[""]
    own.popitem(last=False)
    ops = [append(index, text, role=role, program=9) for index, (role, text) in enumerate([*asked, ("user", "q2")])]
    it.send(wire.Open(program=9), *ops, gen(len(ops), program=9))
    text = prompt_of(it)
    assert sum(tuple(text[at : at + len(odd)]) == odd for at in range(len(text))) == 1
