"""A chat client sends its whole conversation again and again: all of it is found in the cache, the assistant's turns too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import Server

pytestmark = pytest.mark.model

#: What may be missing at the end: a page, and what the template writes after a turn.
SLACK = 20


def tokens_of(server: Server, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    ids: list[int] = server.http.post("/tokenize", json=body).json()["tokens"]
    return ids


def test_every_turn_is_found_again(server: Server) -> None:
    """At temperature 2 the model draws tokens that an encoder would not choose for their text."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Tell me something odd about the number 7391."}]
    odd = 0
    before: dict[str, Any] | None = None
    for turn in range(3):
        answer = server.chat(messages=messages, temperature=1.5, seed=turn, max_tokens=24)
        usage, text = answer["usage"], answer["choices"][0]["message"]["content"]
        if before is not None:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= before["total_tokens"] - SLACK
            # The prompt grew by the turn as it was drawn, whatever its text encodes to.
            assert usage["prompt_tokens"] > before["total_tokens"]
        odd += len(tokens_of(server, text)) != usage["completion_tokens"]
        before = usage
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Go on, {turn}."}]
    assert odd, "every turn was drawn as it is encoded: nothing was tested"


def test_another_salt_finds_nothing(server: Server) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Tell me something odd about the number 9137."}]
    first = server.chat(messages=messages, temperature=1.5, seed=1, max_tokens=16, cache_salt="a")
    messages += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    messages[1] = {"role": "assistant", "content": messages[1]["content"]}
    other = server.chat(messages=messages, max_tokens=1, cache_salt="b")
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    same = server.chat(messages=messages, max_tokens=1, cache_salt="a")
    assert same["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - SLACK


def test_leased_between_two_requests(server: Server) -> None:
    """A program that waits for its tool is open, and its next request ends the lease."""
    opened = server.metric("programs_open")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Wait for me."}]
    first = server.chat(messages=messages, max_tokens=8, temperature=0, radixserve={"program_id": "p", "lease_s": 30})
    assert server.metric("programs_open") == opened + 1
    messages += [
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "Back."},
    ]
    second = server.chat(messages=messages, max_tokens=2, temperature=0, radixserve={"program_id": "p"})
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - SLACK
    assert server.metric("programs_open") == opened
