"""Constraints beside what else a request may ask: limits, biases, stops, several choices. Through the real processes, with a tiny model."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Server

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
OBJECT = {"type": "object", "properties": {"text": {"type": "string", "minLength": 20, "maxLength": 40}}, "required": ["text"]}


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Iterator[Server]:
    with serving(str(tiny_model), "--threads", "1", "--kv-tokens", "8192") as running:
        yield running


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def ids(server: Server, text: str) -> list[int]:
    return server.http.post("/tokenize", json={"model": "default", "prompt": text}).json()["tokens"]


def streamed(server: Server, **body: Any) -> tuple[str, list[str]]:
    """Text and ends of one streamed choice."""
    with server.http.stream("POST", CHAT, json={"model": "default", "stream": True, **body}) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def test_what_max_tokens_cuts_ends_with_length(tiny: Server) -> None:
    asked: dict[str, Any] = {"messages": HI, "response_format": form(OBJECT), "temperature": 1, "seed": 4}
    ends: set[str] = set()
    for limit in (1, 5, 12, 60):
        [choice] = tiny.chat(**asked, max_tokens=limit)["choices"]
        assert streamed(tiny, **asked, max_tokens=limit) == (choice["message"]["content"], [choice["finish_reason"]])
        ends.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert 20 <= len(json.loads(choice["message"]["content"])["text"]) <= 40
        else:
            with pytest.raises(ValueError, match=r"."):
                json.loads(choice["message"]["content"])
    assert ends == {"length", "stop"}


@pytest.mark.parametrize(
    ("schema", "liked", "most"),
    [
        ({"type": "number"}, "0123456789.", 48),
        ({"type": "integer"}, "0123456789", 24),
        ({"type": "number", "minimum": 0}, "0123456789.", 24),
        ({"type": "string", "maxLength": 12}, "ab \\n", 64),
        ({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 4}, " ,\n", 24),
        ({"type": "object", "properties": {"a": {"type": "boolean"}}}, " \n\t", 24),
    ],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_biased_model_can_not_go_on_for_ever(tiny: Server, schema: Any, liked: str, most: int, temperature: float) -> None:
    bias = {str(token): 30 for char in liked for token in ids(tiny, char)}
    asked: dict[str, Any] = {"messages": HI, "response_format": form(schema), "logit_bias": bias, "max_tokens": 200, "seed": 1}
    [choice] = tiny.chat(**asked, temperature=temperature)["choices"]
    assert choice["finish_reason"] == "stop"
    assert len(choice["message"]["content"]) <= most
    json.loads(choice["message"]["content"])


def test_several_choices_of_one_grammar(tiny: Server) -> None:
    asked: dict[str, Any] = {
        "messages": HI,
        "structured_outputs": {"regex": "[ab]{3}-[0-9]{2}"},
        "temperature": 1.5,
        "max_tokens": 32,
    }
    texts = [[choice["message"]["content"] for choice in tiny.chat(**asked, n=8, seed=3)["choices"]] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 4
    assert all(re.fullmatch("[ab]{3}-[0-9]{2}", text) for text in texts[0])


@pytest.mark.parametrize("stream", [False, True])
def test_a_bias_against_all_that_the_grammar_allows(tiny: Server, stream: bool) -> None:
    [token] = ids(tiny, "7")
    asked: dict[str, Any] = {"messages": HI, "structured_outputs": {"choice": ["7"]}, "logit_bias": {str(token): -100}}
    answer = tiny.post(CHAT, **asked, max_tokens=5, stream=stream)
    if answer.status_code == 200:
        assert "nothing_allowed" in answer.text or '"7"' in answer.text
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "nothing_allowed")


@pytest.mark.parametrize("more", [{"min_tokens": 9}, {"ignore_eos": True}])
def test_a_grammar_that_has_to_end_before_it_may(tiny: Server, more: dict[str, Any]) -> None:
    answer = tiny.post(CHAT, messages=HI, structured_outputs={"choice": ["7"]}, max_tokens=12, **more)
    if answer.status_code == 200:
        [choice] = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("7", "stop")
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (400, "nothing_allowed", "invalid_request_error")
    assert tiny.chat(messages=HI, max_tokens=1)["choices"]


def test_a_stop_string_inside_a_constrained_answer(tiny: Server) -> None:
    asked: dict[str, Any] = {"messages": HI, "structured_outputs": {"regex": "ab{2}cd{3}"}, "max_tokens": 32, "stop": ["cd"]}
    [choice] = tiny.chat(**asked)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("abb", "stop")
    assert streamed(tiny, **asked) == ("abb", ["stop"])


@pytest.mark.parametrize("grammar", ["root ::= root", "root ::= root | root root", 'root ::= a\na ::= "x" b\nb ::= b'])
def test_a_grammar_without_a_sentence(tiny: Server, grammar: str) -> None:
    answer = tiny.post(CHAT, messages=HI, structured_outputs={"grammar": grammar}, max_tokens=8)
    assert answer.status_code == 400, answer.text
