"""Agent sessions: requests that follow each other, with sub-agents beside each other in between."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .sessions import Chain, Request, Session, num_blocks, starts_with

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .scaling import TraceOptions
    from .sessions import Blocks

_BLOCK_TOKENS = 64


class AgentTrace:
    """One session a line. Sub-agents that stand next to each other ran at the same time; their session goes on when all have ended."""

    def __init__(self, path: Path, options: TraceOptions) -> None:
        self._path = path
        self._options = options
        scaling = options.scaling(_BLOCK_TOKENS)
        self.block_tokens, self.scale = scaling.block_tokens, scaling.scale

    def sessions(self) -> Iterator[Session]:
        """All sessions with at least one request that fits."""
        with self._path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                session = _Reader(self._options).read(json.loads(line), number)
                if session.stages:
                    yield session


class _Seen:
    """Blocks of the session that a cache without limit has: a byte a block."""

    def __init__(self, num_blocks: int) -> None:
        self._flags = bytearray(b"\1" * num_blocks)

    def leading(self, blocks: Blocks) -> int:
        """How many blocks at the beginning of a prompt are known."""
        known = 0
        for first, last in blocks:
            if last >= len(self._flags):
                self._flags.extend(bytes(last + 1 - len(self._flags)))
            unknown = self._flags.find(0, first, last + 1)
            if unknown >= 0:
                return known + unknown - first
            known += last - first + 1
        return known

    def add(self, blocks: Blocks) -> None:
        """A prompt was computed."""
        for first, last in blocks:
            if last >= len(self._flags):
                self._flags.extend(bytes(last + 1 - len(self._flags)))
            self._flags[first : last + 1] = b"\1" * (last + 1 - first)


class _Reader:
    """Reads one session."""

    def __init__(self, options: TraceOptions) -> None:
        self._options = options
        self._scaling = options.scaling(_BLOCK_TOKENS)
        self._seen = _Seen(0)
        self._highest = 0

    def read(self, row: dict[str, Any], number: int) -> Session:
        """The session of a line."""
        num_shared = row.get("tool_tokens", 0) // _BLOCK_TOKENS if self._options.shares_tools else 0
        self._seen = _Seen(num_shared)
        stages: list[tuple[Chain, ...]] = []
        main: list[Request] = []
        agents: list[dict[str, Any]] = []
        agents_end_s: float | None = None
        for item in row["requests"]:
            if item["type"] == "subagent":
                agents.append(item)
                continue
            if agents:
                self._close(stages, main)
                self._add_agents(stages, agents)
                agents_end_s, agents = max(agent["t"] for agent in agents), []
            request = self._request(item, main[-1] if main else None, agents_end_s)
            agents_end_s = None
            if request is None:
                break
            main.append(request)
        self._close(stages, main)
        self._add_agents(stages, agents)
        return Session(tuple(stages), None, number, self._highest, num_shared, row.get("tool_tokens", 0))

    def _close(self, stages: list[tuple[Chain, ...]], main: list[Request]) -> None:
        """The main chain pauses: what it had so far becomes a stage."""
        if main:
            stages.append((_linked(main),))
            main.clear()

    def _add_agents(self, stages: list[tuple[Chain, ...]], agents: list[dict[str, Any]]) -> None:
        chains = [chain for agent in agents if (chain := self._agent(agent))]
        if chains:
            stages.append(tuple(chains))

    def _agent(self, agent: dict[str, Any]) -> Chain:
        requests: list[Request] = []
        for item in agent["requests"]:
            request = self._request(item, requests[-1] if requests else None, None)
            if request is None:
                break
            requests.append(request)
        return _linked(requests)

    def _request(self, item: dict[str, Any], previous: Request | None, agents_end_s: float | None) -> Request | None:
        # Ids in the file count from 1.
        blocks = tuple((first - 1, last - 1) for first, last in item["blocks"])
        num_prompt_tokens = self._scaling.prompt(item["in"], num_blocks(blocks))
        num_output_tokens = self._scaling.output(item["out"])
        if 0 < self._options.max_context < num_prompt_tokens + num_output_tokens:
            return None
        known = self._seen.leading(blocks) * self._scaling.block_tokens
        if previous is not None and starts_with(blocks, previous.blocks):
            # The last token drawn has no KV.
            known = max(known, previous.num_prompt_tokens + previous.num_output_tokens - 1)
        self._seen.add(blocks)
        self._highest = max(self._highest, *(last for _, last in blocks)) if blocks else self._highest
        # A pause that sub-agents filled is what remains of it after the last of them. Few requests name no pause: it is 0.
        pause = item.get("think_time", 0.0) if agents_end_s is None else item["t"] - agents_end_s
        return Request(
            blocks=blocks,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            think_s=self._options.pause(pause),
            num_new_tokens=num_prompt_tokens - min(known, num_prompt_tokens - 1),
            calls_tool=item.get("stop") == "tool_use",
        )


def _linked(requests: list[Request]) -> Chain:
    """A chain in which each request knows whether the next begins with its prompt."""
    following = [*requests[1:], None]
    return tuple(
        replace(request, is_extended=True) if after is not None and starts_with(after.blocks, request.blocks) else request
        for request, after in zip(requests, following, strict=True)
    )
