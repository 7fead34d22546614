"""Agents as token ids, with the lengths of recorded coding-agent sessions, scaled to fit.

Without a trace, lengths are drawn from log-normal distributions whose medians and spreads are those of the 178 sessions of
callanjfox/kv-cache-tester: 17,200 tokens of shared tools and system prompt, a first prompt of 19,000, 660 new tokens a turn
(5 % to 95 %: 150 to 5,300), 220 tokens of output (95 to 1,500).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve.bench.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHARED, _FIRST = 17_200, 1_800
_NEW, _NEW_SIGMA = 660.0, 1.07
_OUT, _OUT_SIGMA = 220.0, 0.84


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of it."""

    agents: int = 16
    turns: int = 4
    scale: float = 1 / 32
    """Of prompts."""
    scale_output: float = 1 / 8
    max_context: int = 2048
    """An agent ends before its first turn that needs more."""


@dataclass(frozen=True, slots=True)
class Turn:
    """New prompt tokens, and how many are written after them."""

    new_ids: tuple[int, ...]
    num_output: int


@dataclass(frozen=True, slots=True)
class AgentWork:
    """One agent. `turns[0]` comes after `preamble`, which all agents share."""

    preamble: tuple[int, ...]
    turns: tuple[Turn, ...]


def make_agents(sizes: Sizes, vocab_size: int, trace: Path | None = None, seed: int = 0) -> list[AgentWork]:
    """The same for the same arguments. Raises `ValueError` when no turn fits."""
    source = random.Random(seed)
    lengths = _recorded(trace, sizes) if trace is not None else _drawn(sizes, source)
    preamble = _ids(source, round(_SHARED * sizes.scale), vocab_size)
    agents: list[AgentWork] = []
    for turns in lengths:
        kept: list[Turn] = []
        context = len(preamble)
        for new, output in turns:
            context += new + output
            if context > sizes.max_context:
                break
            kept.append(Turn(_ids(source, new, vocab_size), output))
        if kept:
            agents.append(AgentWork(preamble, tuple(kept)))
        if len(agents) == sizes.agents:
            return agents
    if not agents:
        raise ValueError(f"no turn fits {sizes.max_context} tokens; scale lengths down further than {sizes.scale:g}")
    return agents


def _scaled(value: float, scale: float) -> int:
    return max(1, round(value * scale))


def _drawn(sizes: Sizes, source: random.Random) -> Iterator[list[tuple[int, int]]]:
    for _ in range(4 * sizes.agents):
        turns: list[tuple[int, int]] = []
        for turn in range(sizes.turns):
            new = _FIRST if turn == 0 else source.lognormvariate(math.log(_NEW), _NEW_SIGMA)
            output = source.lognormvariate(math.log(_OUT), _OUT_SIGMA)
            turns.append((_scaled(new, sizes.scale), _scaled(output, sizes.scale_output)))
        yield turns


def _recorded(trace: Path, sizes: Sizes) -> Iterator[list[tuple[int, int]]]:
    """Main chains of a trace's sessions: what each turn adds to the prompt before it."""
    for session in read_trace(trace).sessions:
        requests = [request for stage in session.stages for request in stage[0]][: sizes.turns]
        turns: list[tuple[int, int]] = []
        before = float(_SHARED)
        for request in requests:
            turns.append(
                (_scaled(request.prompt_tokens - before, sizes.scale), _scaled(request.output_tokens, sizes.scale_output))
            )
            before = request.prompt_tokens + request.output_tokens
        yield turns


def _ids(source: random.Random, count: int, vocab_size: int) -> tuple[int, ...]:
    """None of the first, which are control tokens in most vocabularies."""
    return tuple(source.randrange(16, vocab_size) for _ in range(count))
