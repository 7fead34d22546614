"""The official OpenAI client against the real model: sync, async, streams, parsing, tools, Responses, and lm-eval's requests."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import Server

pytestmark = pytest.mark.model

HI: Any = [{"role": "user", "content": "Say hello."}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": CITY}}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "description": "The time."}}
ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


class Answer(BaseModel):
    color: Literal["red", "green"]
    sure: bool


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as made:
        yield made


def is_weather(arguments: str) -> bool:
    jsonschema.validate(json.loads(arguments), CITY)
    return True


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="default", messages=HI, max_tokens=8, temperature=0)
    stream = client.chat.completions.create(
        model="default", messages=HI, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_async(server: Server) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model="default", messages=HI, max_tokens=4, temperature=1, seed=seed)
                    for seed in (1, 2, 1)
                )
            )
            return [answer.choices[0].message.content for answer in answers]

    first, _, again = asyncio.run(ask())
    assert first == again


def test_parse(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Is grass red or green?"}]
    answer = client.chat.completions.parse(model="default", messages=messages, response_format=Answer, max_tokens=32)
    assert answer.choices[0].message.parsed is not None
    parsed = client.responses.parse(model="default", input="Is grass red or green?", text_format=Answer, max_output_tokens=32)
    assert isinstance(parsed.output_parsed, Answer)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    asked: dict[str, Any] = {"model": "default", "messages": ASK, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 64}
    [answer] = client.chat.completions.create(**asked, temperature=0, parallel_tool_calls=False).choices
    assert answer.finish_reason == "tool_calls"
    assert answer.message.tool_calls is not None
    [call] = answer.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert is_weather(call.function.arguments)
    with client.chat.completions.stream(**asked, temperature=0, parallel_tool_calls=False) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls is not None
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


def test_a_loop_with_tools(client: openai.OpenAI) -> None:
    """The call goes back with its result, and the whole conversation before it is found in the cache."""
    asked: dict[str, Any] = {"model": "default", "tools": [WEATHER, CLOCK], "temperature": 1, "seed": 7, "max_tokens": 64}
    first = client.chat.completions.create(**asked, messages=ASK, tool_choice="required", parallel_tool_calls=False)
    message = first.choices[0].message
    assert message.tool_calls is not None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees"}
    turn: Any = message.model_dump(exclude_none=True)
    second = client.chat.completions.create(**{**asked, "max_tokens": 8}, messages=[*ASK, turn, result], tool_choice="none")
    assert second.choices[0].message.content
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached >= first.usage.prompt_tokens + first.usage.completion_tokens - 20  # a page, and the end of the turn


def test_a_cut_call_is_no_call(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "default", "messages": ASK, "tools": [WEATHER], "tool_choice": "required", "temperature": 0}
    for limit in (1, 6, 12):
        [whole] = client.chat.completions.create(**asked, max_tokens=limit).choices
        chunks = client.chat.completions.create(**asked, max_tokens=limit, stream=True)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason]
        assert (whole.finish_reason, reasons) == ("length", ["length"])


def test_responses(client: openai.OpenAI) -> None:
    tool: Any = {
        "type": "function",
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": CITY,
        "strict": True,
    }
    first = client.responses.create(
        model="default", instructions="be brief", input="What is the weather in Paris?", tools=[tool], tool_choice="required",
        parallel_tool_calls=False, temperature=0, max_output_tokens=64,
    )  # fmt: skip
    [call] = first.output
    assert call.type == "function_call"
    assert is_weather(call.arguments)
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}]
    with client.responses.stream(
        model="default", instructions="be brief", input=result, previous_response_id=first.id, tools=[tool], tool_choice="none",
        temperature=0, max_output_tokens=8,
    ) as stream:  # fmt: skip
        events = list(stream)
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    final = last.response
    assert final.output_text
    assert final.usage is not None
    assert first.usage is not None
    assert final.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 20


def test_lm_eval_local_completions(server: Server) -> None:
    """Scores of continuations, as lm-eval's `local-completions` asks for them: token ids, echo, logprobs, one token at most."""
    texts = ["The capital of France is Paris", "The capital of France is green"]
    prompts = [server.http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    choices = server.complete(**body)["choices"]
    sums: list[float] = []
    for choice, ids in zip(choices, prompts, strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(ids) + 1
        assert logprobs["token_logprobs"][0] is None
        begin = len(ids) - 1
        sums.append(sum(logprobs["token_logprobs"][begin:-1]))
        assert max(logprobs["top_logprobs"][begin].values()) >= logprobs["token_logprobs"][begin]
    assert sums[0] > sums[1]
    until = server.complete(prompt=[texts[0]], max_tokens=8, temperature=0, stop=["\n\n"], seed=1234)
    assert isinstance(until["choices"][0]["text"], str)


def test_tokens_are_those_of_the_prompt(server: Server) -> None:
    messages = [{"role": "system", "content": "s"}, *ASK]
    counted = server.http.post("/tokenize", json={"messages": messages, "tools": [WEATHER]}).json()
    answer = server.chat(messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == counted["count"]
    text = server.http.post("/detokenize", json={"tokens": counted["tokens"]}).json()["prompt"]
    assert "weather" in text
    assert "Paris" in text
