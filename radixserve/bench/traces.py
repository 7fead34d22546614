"""Recorded traces, as sessions of requests that name the blocks of their prompts. Three forms, told apart by their first line:

- agent sessions: a JSON object a line with `requests`, each with `in`, `out`, `think_time` and `blocks` (inclusive ranges of ids
  of 64-token blocks, which mean something within the session only); some hold nested `subagent` requests;
- conversations: a JSON object a line with `timestamp` (ms), `input_length`, `output_length` and `hash_ids` of 512-token blocks;
- arrivals: CSV with `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
"""

from __future__ import annotations

import csv
import datetime
import json
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from radixserve.bench.ask import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the model, in the trace's own tokens."""

    blocks: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    pause_s: float = 0.0
    """After what came before it."""


@dataclass(frozen=True, slots=True)
class Session:
    """Stages follow each other; the chains of a stage (sub-agents) run side by side, the requests of a chain in order."""

    stages: tuple[tuple[tuple[Request, ...], ...], ...]
    start_s: float | None = None
    """When it arrives, where the trace has a clock that all sessions share."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file holds."""

    block_tokens: int
    blocks_are_global: bool
    """Whether equal ids of different sessions are the same text."""
    sessions: Iterator[Session]
    """Read as they are asked for."""


def read_trace(path: Path) -> Trace:
    """The trace of a file. Raises `BenchError` when it can't be read or is none of the forms."""
    try:
        with path.open(encoding="utf-8") as lines:
            head = lines.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--trace {path}: {error}") from error
    if head.startswith("TIMESTAMP,"):
        return Trace(64, True, _arrivals(path))
    try:
        first: Any = json.loads(head)
    except ValueError as error:
        raise BenchError(f"--trace {path}: neither JSON lines nor a CSV of arrivals") from error
    if isinstance(first, dict) and "hash_ids" in first:
        return Trace(512, True, map(_conversation, _rows(path)))
    if isinstance(first, dict) and "requests" in first:
        return Trace(64, False, map(_agent_session, _rows(path)))
    raise BenchError(f"--trace {path}: a line has neither `requests` nor `hash_ids`")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise BenchError(f"--trace {path}, line {number}: {error}") from error


def _conversation(row: dict[str, Any]) -> Session:
    request = Request(tuple(row["hash_ids"][: row["input_length"] // 512]), row["input_length"], row["output_length"])
    return Session((((request,),),), row["timestamp"] / 1e3)


def _arrivals(path: Path) -> Iterator[Session]:
    origin: datetime.datetime | None = None
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            time = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])  # one digit more than Python reads
            origin = origin or time
            request = Request((), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            yield Session((((request,),),), (time - origin).total_seconds())


def _agent_session(row: dict[str, Any]) -> Session:
    stages: list[tuple[tuple[Request, ...], ...]] = []
    main: list[Request] = []
    agents: list[tuple[Request, ...]] = []

    def close() -> None:
        """What is under way becomes stages: the main chain so far, then the sub-agents that it started together."""
        if main:
            stages.append((tuple(main),))
            main.clear()
        if agents:
            stages.append(tuple(agents))
            agents.clear()

    for item in row["requests"]:
        if item["type"] == "subagent":
            agents.append(tuple(_agent_request(one) for one in item["requests"]))
            continue
        if agents:
            close()
        main.append(_agent_request(item))
    close()
    return Session(tuple(stages))


def _agent_request(item: dict[str, Any]) -> Request:
    blocks = tuple(chain.from_iterable(range(first, last + 1) for first, last in item["blocks"]))
    return Request(blocks, item["in"], item["out"], item.get("think_time", 0.0))


def requests_of(sessions: Iterable[Session]) -> Iterator[Request]:
    """All requests."""
    for session in sessions:
        for stage in session.stages:
            for requests in stage:
                yield from requests
