"""OpenAI's agents and pydantic-ai against the real model: a tool is called, its result goes back, an answer comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import agents
import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

if TYPE_CHECKING:
    from tests.integration.conftest import Server

pytestmark = pytest.mark.model


class Color(BaseModel):
    color: Literal["red", "green"]


def openai_agents_model(server: Server, kind: str) -> tuple[openai.AsyncOpenAI, Any]:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
    made = agents.OpenAIResponsesModel if kind == "responses" else agents.OpenAIChatCompletionsModel
    return client, made(model="default", openai_client=client)


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_openai_agents(server: Server, kind: str) -> None:
    called: list[str] = []

    @agents.function_tool
    def weather(city: Literal["Paris", "Ulm"]) -> str:
        """The weather of a city."""
        called.append(city)
        return "18 degrees"

    async def run() -> tuple[str, str]:
        client, model = openai_agents_model(server, kind)
        agent = agents.Agent(
            name="helper",
            instructions="be brief",
            model=model,
            tools=[weather],
            # The choice is reset after the first call, so the second answer is text or another call.
            model_settings=agents.ModelSettings(tool_choice="required", temperature=0, max_tokens=48, parallel_tool_calls=False),
            tool_use_behavior="stop_on_first_tool",
        )
        structured = agents.Agent(
            name="painter", model=model, output_type=Color, model_settings=agents.ModelSettings(temperature=0, max_tokens=24)
        )
        config = agents.RunConfig(tracing_disabled=True)
        first = await agents.Runner.run(agent, "What is the weather in Paris?", run_config=config)
        streamed = agents.Runner.run_streamed(structured, "Which color has grass?", run_config=config)
        kinds = [event.type async for event in streamed.stream_events()]
        assert "raw_response_event" in kinds
        await client.close()
        return str(first.final_output), streamed.final_output.color

    output, color = asyncio.run(run())
    assert output == "18 degrees"
    assert len(called) == 1
    assert color in ("red", "green")


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_openai_agents_history(server: Server, kind: str) -> None:
    """The items of one run are the input of the next: calls, results and text of either side."""

    @agents.function_tool
    def weather(city: Literal["Paris", "Ulm"]) -> str:
        """The weather of a city."""
        return "18 degrees"

    async def run() -> list[str]:
        client, model = openai_agents_model(server, kind)
        settings = agents.ModelSettings(tool_choice="required", temperature=0, max_tokens=32, parallel_tool_calls=False)
        agent = agents.Agent(
            name="helper", model=model, tools=[weather], model_settings=settings, tool_use_behavior="stop_on_first_tool"
        )
        config = agents.RunConfig(tracing_disabled=True)
        first = await agents.Runner.run(agent, "What is the weather in Paris?", run_config=config)
        # The library takes an answer that its limit cuts for a failure.
        talker = agents.Agent(name="talker", model=model, model_settings=agents.ModelSettings(temperature=0, max_tokens=96))
        more: Any = [*first.to_input_list(), {"role": "user", "content": "Thanks."}]
        second = await agents.Runner.run(talker, more, run_config=config)
        third = await agents.Runner.run(talker, [*second.to_input_list(), {"role": "user", "content": "Bye."}], run_config=config)
        await client.close()
        return [str(second.final_output), str(third.final_output)]

    assert all(asyncio.run(run()))


def pydantic_model(server: Server, kind: str) -> OpenAIChatModel | OpenAIResponsesModel:
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="k")
    made = OpenAIResponsesModel if kind == "responses" else OpenAIChatModel
    return made("default", provider=provider)


@pytest.mark.parametrize("kind", ["responses", "chat"])
def test_pydantic_ai(server: Server, kind: str) -> None:
    settings = ModelSettings(temperature=0, max_tokens=32)
    model = pydantic_model(server, kind)
    by_tool = Agent(model, output_type=Color, model_settings=settings)
    assert by_tool.run_sync("Which color has grass?").output.color in ("red", "green")
    native = Agent(model, output_type=NativeOutput(Color), model_settings=settings)
    assert native.run_sync("Which color has grass?").output.color in ("red", "green")


def test_pydantic_ai_streams_and_goes_on(server: Server) -> None:
    agent = Agent(
        pydantic_model(server, "chat"), instructions="be brief", model_settings=ModelSettings(temperature=0, max_tokens=8)
    )

    async def run() -> tuple[str, int]:
        async with agent.run_stream("Say hello.") as stream:
            text = "".join([piece async for piece in stream.stream_text(delta=True)])
            history = stream.all_messages()
        second = await agent.run("And now goodbye.", message_history=history)
        assert second.output
        return text, second.usage.cache_read_tokens

    text, cached = asyncio.run(run())
    assert text
    assert cached > 0
