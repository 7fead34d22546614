"""The programs with OpenAI's client, as its users write them: every request sends the whole conversation."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from benchmarks.written_twice.work import (
    ASK_AGAIN,
    CONCLUDE,
    EXPLAIN,
    MARK,
    NEXT,
    SYSTEM,
    Sizes,
    Verdict,
    Work,
    best,
    make_search,
    winner,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Messages = list[dict[str, Any]]
_MODEL = "default"
_MARKED = {"structured_outputs": {"regex": "[1-9]"}}
_VERDICT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": Verdict.model_json_schema()}}
_SEARCH = make_search(Work(0, Sizes()), []).spec
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _SEARCH.name,
            "description": _SEARCH.description,
            "parameters": json.loads(_SEARCH.parameters),
        },
    }
]


async def run(program: str, work: Work, client: AsyncOpenAI) -> str:
    """One run of the program of that name."""
    written = {"tree of thought": _tree_of_thought, "self-consistency": _self_consistency, "react": _react}[program]
    return await written(work, _Chat(client))


class _Chat:
    """Chat completions, the parts of them that the programs want."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client: Any = client  # its types want a TypedDict for each message

    async def texts(self, messages: Messages, **fields: Any) -> list[str]:
        """The text of each choice."""
        answer = await self._client.chat.completions.create(model=_MODEL, messages=messages, **fields)
        return [choice.message.content or "" for choice in answer.choices]

    async def text(self, messages: Messages, **fields: Any) -> str:
        """The text of the only choice, greedy."""
        return (await self.texts(messages, temperature=0.0, **fields))[0]

    async def call(self, messages: Messages) -> Any:
        """A call of the tool."""
        answer = await self._client.chat.completions.create(
            model=_MODEL, messages=messages, temperature=0.0, tools=_TOOLS, tool_choice="required", parallel_tool_calls=False
        )
        return answer.choices[0].message


async def _tree_of_thought(work: Work, chat: _Chat) -> str:
    sizes = work.sizes
    beam: list[Messages] = [_opening(work)]
    for level in range(sizes.depth):
        thoughts = await asyncio.gather(
            *(
                chat.texts(
                    messages,
                    n=sizes.width,
                    max_tokens=sizes.output,
                    temperature=0.9,
                    stop="\n",
                    seed=work.seed(f"{level} {place}"),
                )
                for place, messages in enumerate(beam)
            )
        )
        kids = [
            [*messages, _assistant(thought), _user(MARK)] for messages, own in zip(beam, thoughts, strict=True) for thought in own
        ]
        marks = await asyncio.gather(*(chat.text(kid, extra_body=_MARKED) for kid in kids))
        chosen = best([int(mark) for mark in marks], sizes.keep)
        await work.pause()
        following = NEXT if level + 1 < sizes.depth else CONCLUDE
        beam = [[*kids[place], _assistant(marks[place]), _user(following)] for place in chosen]
    return await chat.text(beam[0], max_tokens=sizes.output)


async def _self_consistency(work: Work, chat: _Chat) -> str:
    sizes = work.sizes
    messages = _opening(work)
    said: list[str] = []
    for number in range(sizes.questions):
        if number:
            messages.append(_user(ASK_AGAIN))
        seed = work.seed(f"votes {number}")
        texts = await chat.texts(messages, n=sizes.votes, temperature=0.9, response_format=_VERDICT, seed=seed)
        answer = winner([Verdict.model_validate_json(text).answer for text in texts])
        await work.pause()
        messages += [_assistant(str(answer)), _user(EXPLAIN)]
        explanation = await chat.text(messages, max_tokens=sizes.output)
        messages.append(_assistant(explanation))
        said.append(f"{answer} {explanation}")
    return " | ".join(said)


async def _react(work: Work, chat: _Chat) -> str:
    messages = _opening(work)
    queries: list[str] = []
    for turn in range(work.sizes.turns):
        said = await chat.call(messages)
        (call,) = said.tool_calls
        queries.append(json.loads(call.function.arguments)["query"])
        await work.pause()
        messages += [
            said.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": work.result(turn + 1)},
        ]
    messages.append(_user(CONCLUDE))
    # The tools stay: without them the system message would be another one, and nothing of the cache would fit.
    answer = await chat.text(messages, max_tokens=work.sizes.output, tools=_TOOLS, tool_choice="none")
    return " | ".join([*queries, answer])


def _opening(work: Work) -> Messages:
    return [{"role": "system", "content": SYSTEM}, _user(work.question)]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
