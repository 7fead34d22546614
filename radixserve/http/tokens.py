"""What a request's prompt is in tokens, asked of the engine without running anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.http.program import ProgramSpec, Segment
    from radixserve.http.state import ServerState
    from radixserve_tokenizer.protocol import ToolSpec


async def chat_tokens(
    state: ServerState, segments: Sequence[Segment], tools: Sequence[ToolSpec], *, add_generation_prompt: bool
) -> list[int]:
    """The ids of a conversation; raw text at its end goes on from the turn that is opened for it. Raises `ApiError`."""
    messages = [one for one in segments if one.role]
    rest = "".join(one.text for one in segments if not one.role)
    body: dict[str, Any] = {
        "messages": [{"role": one.role, "content": one.text, **one.fields} for one in messages],
        "add_generation_prompt": add_generation_prompt or bool(rest),
    }
    if tools:
        body["tools"] = msgspec.to_builtins(list(tools))
    ids: list[int] = list((await state.query("tokenize", body))["ids"])
    if rest:
        ids += list((await state.query("tokenize", {"text": rest, "add_special_tokens": False}))["ids"])
    return ids


async def count_tokens(state: ServerState, spec: ProgramSpec) -> int:
    """How long the prompt of a chat program is."""
    return len(await chat_tokens(state, spec.segments, spec.tools, add_generation_prompt=True))


async def token_strings(state: ServerState, ids: list[int]) -> list[str]:
    """The text of each token alone; U+FFFD stands for what is no character alone."""
    strings: list[str] = list((await state.query("detokenize", {"ids": ids, "separately": True}))["texts"])
    return strings
