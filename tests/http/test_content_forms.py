"""The forms that message content has (reported bug 17), and what travels beside it."""

from __future__ import annotations

import pytest

from tests.http.harness import CHAT

PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("role", "sent"),
    [("system", "system"), ("developer", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")],
)
@pytest.mark.parametrize(("content", "text"), [(PARTS, "ab"), ("ab", "ab"), ("", ""), (None, ""), ([], "")])
def test_bug_17_content(api, fake, role, sent, content, text):
    assert (
        api(
            CHAT, {"model": "tiny", "messages": [{"role": role, "content": content}, {"role": "user", "content": "x"}]}
        ).status_code
        == 200
    )
    assert fake.last.prompt == [(sent, text), ("user", "x")]


def test_bug_17_missing_content_beside_tool_calls(api, fake):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"é"}'}}
    for content in ({}, {"content": None}, {"content": ""}):
        messages = [
            {"role": "user", "content": "hi", "name": "ann"},
            {"role": "assistant", **content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": PARTS},
        ]
        assert api(CHAT, {"model": "tiny", "messages": messages}).status_code == 200
        assert fake.last.prompt == [("user", "hi"), ("assistant", ""), ("tool", "ab")]
        assert [append.fields for append in fake.last.appends] == [
            {"name": "ann"},
            {"tool_calls": [call]},
            {"tool_call_id": "call_1"},
        ]


def test_answers_can_be_sent_back(api, fake):
    """What we answer is a message that we take."""
    message = api(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).json()["choices"][0]["message"]
    assert api(CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}, message]}).status_code == 200
    assert fake.last.prompt[-1] == ("assistant", "Hello world!")


def test_refusals_are_text(api, fake):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "refusal": "no"}]
    assert api(CHAT, {"model": "tiny", "messages": messages}).status_code == 200
    assert fake.last.prompt[-1] == ("assistant", "no")


def test_continue_final_message(api, fake):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure, "}]
    assert api(CHAT, {"model": "tiny", "messages": messages, "continue_final_message": True}).status_code == 200
    assert fake.last.prompt == [("user", "hi"), ("", "Sure, ")]
    assert api(CHAT, {"model": "tiny", "messages": messages[:1], "continue_final_message": True}).status_code == 400
