"""Constraints over HTTP through the real processes: what they allow, and how a field that can't be honoured is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Server

CHOICES = [f"option {number}: é|{number * 7}" for number in range(500)]


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Iterator[Server]:
    with serving(str(tiny_model), "--threads", "1", "--kv-tokens", "4096") as running:
        yield running


@pytest.mark.parametrize(
    "more", [{"guided_choice": CHOICES}, {"structured_outputs": {"choice": CHOICES}}], ids=["guided", "structured"]
)
def test_an_answer_is_one_of_some_hundred_choices(tiny: Server, more: dict[str, Any]) -> None:
    choices = tiny.complete(prompt="x", n=4, seed=1, temperature=2, **more)["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    assert {choice["text"] for choice in choices} <= set(CHOICES)


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<a>"],
        "tags": [
            {
                "type": "tag",
                "begin": "<a>",
                "content": {
                    "type": "json_schema",
                    "json_schema": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 3},
                },
                "end": "</a>",
            }
        ],
        "at_least_one": True,
        "stop_after_first": True,
    },
}


@pytest.mark.parametrize(
    "more", [{"response_format": TAG}, {"structured_outputs": {"structural_tag": json.dumps(TAG)}}], ids=["format", "structured"]
)
def test_structural_tags(tiny: Server, more: dict[str, Any]) -> None:
    for choice in tiny.complete(prompt="x", n=4, seed=1, temperature=1, max_tokens=300, **more)["choices"]:
        assert choice["finish_reason"] == "stop"
        assert choice["text"].startswith("<a>")
        texts = json.loads(choice["text"].removeprefix("<a>").removesuffix("</a>"))
        assert 1 <= len(texts) <= 3
        assert all(len(text) <= 30 for text in texts)


@pytest.mark.parametrize("length", [2, 30, 200])
def test_lengths_are_kept_to_the_character(tiny: Server, length: int) -> None:
    """A model of random weights never ends a string by itself: it comes to the bound."""
    schema = {"type": "string", "minLength": length - 1, "maxLength": length}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for choice in tiny.complete(prompt="x", n=4, seed=2, temperature=1, max_tokens=500, response_format=form)["choices"]:
        assert choice["finish_reason"] == "stop"
        assert length - 1 <= len(json.loads(choice["text"])) <= length
    expression = {"regex": f"[a-z]{{{length - 1},{length}}}-[0-9]{{0,2}}"}
    for choice in tiny.complete(prompt="x", n=4, seed=2, temperature=1, max_tokens=500, structured_outputs=expression)["choices"]:
        assert length - 1 <= len(choice["text"].partition("-")[0]) <= length


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "structural_tag", "format": {"type": "token", "token": 3}}}, "response_format"),
        ({"guided_regex": "a" * 5000}, "guided_regex"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex"),
        ({"guided_choice": ["x" * 50_000]}, "guided_choice"),
        ({"guided_grammar": "root ::= " + "x" * 200_000}, "guided_grammar"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
    ],
    ids=["tag", "long", "look-ahead", "choices", "grammar", "schema"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_constraint_that_can_not_be_enforced_names_its_field(
    tiny: Server, more: dict[str, Any], param: str, stream: bool
) -> None:
    answer = tiny.post("/v1/completions", prompt="x", stream=stream, **more)
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, "invalid_grammar")


def test_a_prompt_that_is_too_long_names_its_field(tiny: Server) -> None:
    for path, prompt, param in (
        ("/v1/completions", {"prompt": "x " * 9000}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x " * 9000}]}, "messages"),
    ):
        assert tiny.post(path, **prompt).json()["error"]["param"] == param
    chat = tiny.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_completion_tokens=100_000)
    assert chat.json()["error"]["param"] == "max_completion_tokens"


def test_top_p_0_is_greedy(tiny: Server) -> None:
    texts = {
        tiny.complete(prompt="Once", max_tokens=12, ignore_eos=True, **sampling)["choices"][0]["text"]
        for sampling in ({"temperature": 0}, {"temperature": 2, "top_p": 0, "seed": 1}, {"temperature": 2, "top_p": 0, "seed": 2})
    }
    assert len(texts) == 1
