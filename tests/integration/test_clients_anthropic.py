"""The official Anthropic client against the real model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anthropic
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Server

pytestmark = pytest.mark.model

#: The client has no argument for it any more.
GREEDY: dict[str, object] = {"temperature": 0}
ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as made:
        yield made


def test_text_whole_and_streamed(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "default", "system": "be brief", "messages": ASK, "max_tokens": 8, "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    assert whole.stop_reason in ("max_tokens", "end_turn")
    with client.messages.stream(**asked) as stream:
        first = next(iter(stream))
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert first.type == "message_start"
    assert whole.content[0].type == "text"
    assert text == whole.content[0].text
    counted = client.messages.count_tokens(model="default", system="be brief", messages=ASK).input_tokens
    for usage in (whole.usage, first.message.usage, final.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_a_loop_with_tools(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "default", "tools": [WEATHER], "extra_body": GREEDY}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    first = client.messages.create(**asked, messages=ASK, tool_choice=choice, max_tokens=64)
    assert first.stop_reason == "tool_use"
    [call] = first.content
    assert call.type == "tool_use"
    assert set(call.input) == {"city"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "18 degrees"}]}
    turn = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]}
    messages: Any = [*ASK, turn, result]
    with client.messages.stream(**asked, messages=messages, tool_choice={"type": "none"}, max_tokens=8) as stream:
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    before = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) + first.usage.output_tokens
    assert (final.usage.cache_read_input_tokens or 0) >= before - 20


def test_stop_sequence_and_going_on(client: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one, two, three, four,"}]
    answer = client.messages.create(model="default", messages=messages, max_tokens=16, extra_body=GREEDY, stop_sequences=[","])
    assert (answer.stop_reason, answer.stop_sequence) in (("stop_sequence", ","), ("end_turn", None), ("max_tokens", None))
    assert "," not in (answer.content[0].text if answer.content and answer.content[0].type == "text" else "")


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(model="claude", messages=ASK, max_tokens=8)
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        client.messages.create(model="default", messages=ASK, max_tokens=20_000)
