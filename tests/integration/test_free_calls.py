"""Tools that the real model calls by itself (`tool_choice` auto, greedy): shown how, it does; the calls are parsed and streamed right."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Server

pytestmark = pytest.mark.model


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {
            field: {"type": kind, "maxLength": 40} if kind == "string" else {"type": kind} for field, kind in properties.items()
        },
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = tool("get_weather", "Get the weather at a location.", location="string")
TIME = tool("get_time", "The current time in a time zone.", zone="string")
MATHS = tool("calculator", "Evaluate an arithmetic expression.", expression="string")
SEARCH = tool("web_search", "Search the web.", query="string")
EMAIL = tool("send_email", "Send an email.", to="string", subject="string", body="string")
REMINDER = tool("set_reminder", "Remind the user of something later.", text="string", minutes="integer")
MONEY = tool("convert_currency", "Convert an amount of money.", amount="number", source="string", target="string")
FILE = tool("read_file", "Read a file.", path="string")
WORDS = tool("translate", "Translate a text.", text="string", language="string")
TABLE = tool("book_table", "Book a table in a restaurant.", restaurant="string", people="integer")

#: What is asked, with which tools; the first tool is meant.
CALLS: list[tuple[str, list[dict[str, Any]]]] = [
    ("What is the weather in San Francisco, CA?", [WEATHER]),
    ("What's the weather like in Paris today?", [WEATHER, TIME]),
    ("Will it rain in London tomorrow?", [WEATHER]),
    ("What time is it in Tokyo?", [TIME, WEATHER]),
    ("Tell me the current time in New York.", [TIME]),
    ("What is 1234 * 5678?", [MATHS]),
    ("Calculate 15% of 249.", [MATHS, SEARCH]),
    ("Search the web for the latest news about SpaceX.", [SEARCH]),
    ("Find information on the web about electric cars.", [SEARCH, WEATHER]),
    ("Send an email to bob@example.com about the meeting tomorrow.", [EMAIL]),
    ("Email anna@example.com that I will be late.", [EMAIL, REMINDER]),
    ("Remind me in 10 minutes to call mom.", [REMINDER]),
    ("Set a reminder for 30 minutes from now to check the oven.", [REMINDER, EMAIL]),
    ("Convert 100 US dollars to euros.", [MONEY]),
    ("How much is 50 pounds in yen?", [MONEY, WEATHER]),
    ("Read the file notes.txt.", [FILE]),
    ("Show me what is in /etc/hosts.", [FILE, SEARCH]),
    ("Translate 'good morning' to French.", [WORDS]),
    ("How do you say 'thank you' in German?", [WORDS, WEATHER]),
    ("Book a table for 4 at Luigi's.", [TABLE, EMAIL]),
]
#: What no tool is for.
TALK: list[tuple[str, list[dict[str, Any]]]] = [
    ("Hello! How are you?", [WEATHER]),
    ("Write a short poem about the sea.", [WEATHER, TIME]),
    ("Who are you?", [MATHS]),
    ("Thank you very much!", [SEARCH, WEATHER]),
    ("Explain what a prime number is.", [WEATHER]),
    ("Give me three names for a dog.", [TIME]),
    ("Why is the sky blue?", [REMINDER]),
    ("Tell me a joke.", [MONEY]),
    ("Write a haiku.", [FILE]),
    ("What can you do for me?", [TABLE]),
]


def ask(server: Server, question: str, tools: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return server.chat(messages=messages, tools=tools, temperature=0, parallel_tool_calls=False, **body)["choices"][0]


def test_how_often_it_calls(server: Server) -> None:
    """docs/tools.md says how often. Another machine's rounding may change an answer."""
    with ThreadPoolExecutor(8) as threads:
        called = list(threads.map(lambda one: ask(server, *one, max_tokens=100), CALLS))
        talked = list(threads.map(lambda one: ask(server, *one, max_tokens=12), TALK))
    # A call that the limit cut is in no answer: then there is no text either.
    assert sum(not choice["message"]["content"] for choice in called) >= 14
    assert sum(not choice["message"]["content"] for choice in talked) <= 3
    parameters = {one["function"]["name"]: one["function"]["parameters"] for _, tools in CALLS for one in tools}
    num_meant = 0
    for choice, (_, tools) in zip(called, CALLS, strict=True):
        for call in choice["message"].get("tool_calls", []):
            jsonschema.validate(json.loads(call["function"]["arguments"]), parameters[call["function"]["name"]])
            num_meant += call["function"]["name"] == tools[0]["function"]["name"]
    assert num_meant >= 8


def test_a_free_call_is_streamed_as_it_is_answered(server: Server) -> None:
    question, tools = CALLS[0]
    whole = ask(server, question, tools, max_tokens=100)
    assert whole["finish_reason"] == "tool_calls"
    [call] = whole["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": question}],
        "tools": tools,
        "temperature": 0,
        "stream": True,
    }
    with server.http.stream(
        "POST", "/v1/chat/completions", json={**body, "parallel_tool_calls": False, "max_tokens": 100}
    ) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    choices = [one for line in lines for one in json.loads(line)["choices"]]
    pieces = [piece for one in choices for piece in one["delta"].get("tool_calls", [])]
    assert [piece["function"]["name"] for piece in pieces if "name" in piece["function"]] == ["get_weather"]
    assert "".join(piece["function"].get("arguments", "") for piece in pieces) == call["function"]["arguments"]
    assert len(pieces) > 2
    assert "".join(one["delta"].get("content") or "" for one in choices) == (whole["message"]["content"] or "")
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_after_the_result_it_talks(server: Server) -> None:
    """Or an agent would never come to an end."""
    question, tools = CALLS[0]
    first = ask(server, question, tools, max_tokens=100)["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "It's sunny, 18 degrees."}
    messages = [{"role": "user", "content": question}, first, result]
    second = server.chat(messages=messages, tools=tools, temperature=0, max_tokens=16)["choices"][0]
    assert second["message"]["content"]
    assert "tool_calls" not in second["message"]
