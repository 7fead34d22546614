"""The official client against a real server: sync, async, streams, parsing, errors."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

from radixserve_tokenizer.protocol import ToolCall
from tests.http.fake_engine import Script, failing, refusing, scripted

HI = [{"role": "user", "content": "hi"}]


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="sk-1", max_retries=0) as made:
        yield made


def test_models(client):
    assert [one.id for one in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_chat(client, fake):
    answer = client.chat.completions.create(model="tiny", messages=HI, n=2, seed=1, logprobs=True, top_logprobs=1)
    assert [choice.message.content for choice in answer.choices] == ["Hello world!"] * 2
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "alt0"
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert fake.last.opening["api_key"] == "sk-1"


def test_chat_stream(client):
    chunks = list(client.chat.completions.create(model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world!"
    assert chunks[-1].usage.completion_tokens == 3
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model="tiny", messages=HI) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Hello world!"


def test_parse(client, fake):
    fake.handler = scripted(Script(tokens=('{"name": "Ann",', ' "age": 7}')))
    answer = client.chat.completions.parse(model="tiny", messages=HI, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ann", age=7)
    constraint = fake.last.gens[0].constraint
    assert constraint.kind == "json_schema"
    assert json.loads(constraint.source)["required"] == ["name", "age"]


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_tools(client, fake):
    call = ToolCall(id="call_1", name="weather", arguments='{"city": "Köln"}')
    fake.handler = scripted(Script(tokens=(), calls=(call,)))
    [answer] = client.chat.completions.create(model="tiny", messages=HI, tools=[WEATHER]).choices
    assert answer.finish_reason == "tool_calls"
    assert answer.message.tool_calls[0].function.arguments == call.arguments
    with client.chat.completions.stream(model="tiny", messages=HI, tools=[WEATHER]) as stream:
        seen = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert (final.id, final.function.name, final.function.arguments) == ("call_1", "weather", call.arguments)
    assert "".join(event.arguments_delta for event in seen) == call.arguments


def test_completions(client):
    answer = client.completions.create(model="tiny", prompt=["a", "b"], logprobs=1, echo=False)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs.tokens == ["Hello", " world", "!"]
    stream = client.completions.create(model="tiny", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello world!"


def test_async(live):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=0) as client:
            whole = await client.chat.completions.create(model="tiny", messages=HI)
            stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            several = await asyncio.gather(*(client.completions.create(model="tiny", prompt="x") for _ in range(8)))
            return whole.choices[0].message.content, "".join(parts), {one.choices[0].text for one in several}

    assert asyncio.run(ask()) == ("Hello world!", "Hello world!", {"Hello world!"})


def test_errors(client, fake):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4o", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=HI, temperature=3)
    assert bad.value.param == "temperature"
    fake.handler = refusing(429, "rate_limit_exceeded", "slow down", 1.0)
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="tiny", messages=HI)
    fake.handler = refusing(401, "invalid_api_key", "no")
    with pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model="tiny", messages=HI)


def test_error_in_a_stream(client, fake):
    fake.handler = failing("runtime_lost", "the runtime ended", status=503, after=Script())
    stream = client.chat.completions.create(model="tiny", messages=HI, stream=True)
    with pytest.raises(openai.APIError, match="the runtime ended"):
        list(stream)


def test_a_refused_stream_is_tried_again(live, fake):
    """The client's own retries work, as the refusal has a status."""
    handlers = [refusing(503, "overloaded", "full", 0.01), scripted(Script())]

    def handler(channel, messages):
        handlers[min(channel.program, 1)](channel, messages)

    fake.handler = handler
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="k", max_retries=2) as client:
        stream = client.chat.completions.create(model="tiny", messages=HI, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello world!"
    assert len(fake.channels) == 2
