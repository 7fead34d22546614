"""Reading recorded traces. Three forms, told apart by their first line:

- agent sessions: a JSON object a line with `requests`, each with `in`, `out`, `think_time`, `stop` and `blocks` (inclusive
  ranges of 64-token block ids that mean something within the session only), and nested `subagent` requests;
- conversations: a JSON object a line with `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512-token blocks;
- arrivals: CSV with `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`, without block ids.
"""

from __future__ import annotations

import csv
import datetime
import json
from typing import TYPE_CHECKING, Any

from .agents import AgentTrace
from .sessions import Request, Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .scaling import TraceOptions
    from .sessions import Trace


class UnknownTraceError(ValueError):
    """The file is none of the forms that are known."""


def open_trace(path: Path, options: TraceOptions) -> Trace:
    """The reader for a file's form. Raises `UnknownTraceError`, `OSError`."""
    with path.open(encoding="utf-8") as lines:
        head = lines.readline()
    if head.startswith("TIMESTAMP,"):
        return ArrivalTrace(path, options)
    try:
        first = json.loads(head)
    except json.JSONDecodeError as error:
        raise UnknownTraceError(f"{path}: neither JSON lines nor a CSV of arrivals") from error
    if isinstance(first, dict) and "hash_ids" in first:
        return ConversationTrace(path, options)
    if isinstance(first, dict) and "requests" in first:
        return AgentTrace(path, options)
    raise UnknownTraceError(f"{path}: a line has neither `requests` nor `hash_ids`")


class ConversationTrace:
    """Requests with a time and global block ids. Those that share their second block (the first is the same in all) are one conversation."""

    def __init__(self, path: Path, options: TraceOptions) -> None:
        self._path = path
        self._scaling = options.scaling(512)
        self.block_tokens, self.scale = self._scaling.block_tokens, self._scaling.scale

    def sessions(self) -> Iterator[Session]:
        """Each request is a session of its own at its own time, as the trace knows no dependence between them."""
        seen: set[int] = set()
        with self._path.open(encoding="utf-8") as lines:
            for line in lines:
                yield self._session(json.loads(line), seen)

    def _session(self, row: dict[str, Any], seen: set[int]) -> Session:
        ids: list[int] = row["hash_ids"][: row["input_length"] // 512]
        known = next((index for index, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
        num_prompt_tokens = self._scaling.prompt(row["input_length"], len(ids))
        request = Request(
            blocks=tuple(_ranges(ids)),
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=self._scaling.output(row["output_length"]),
            think_s=0.0,
            num_new_tokens=num_prompt_tokens - min(known * self.block_tokens, num_prompt_tokens - 1),
        )
        group = ids[1] if len(ids) > 1 else ids[0] if ids else row["timestamp"]
        return Session(((((request,),),)), row["timestamp"] / 1e3, group, max(ids, default=0), blocks_are_global=True)


def _ranges(ids: list[int]) -> Iterator[tuple[int, int]]:
    """Inclusive ranges of ids that follow each other."""
    start = previous = None
    for block in ids:
        if start is None or previous is None:
            start = block
        elif block != previous + 1:
            yield start, previous
            start = block
        previous = block
    if start is not None and previous is not None:
        yield start, previous


class ArrivalTrace:
    """Requests with a time and lengths; none shares anything."""

    def __init__(self, path: Path, options: TraceOptions) -> None:
        self._path = path
        self._scaling = options.scaling(64)
        self.block_tokens, self.scale = self._scaling.block_tokens, self._scaling.scale

    def sessions(self) -> Iterator[Session]:
        """Each arrival is a session."""
        origin: datetime.datetime | None = None
        with self._path.open(encoding="utf-8", newline="") as lines:
            for number, row in enumerate(csv.DictReader(lines)):
                # Python reads microseconds; the file has one digit more.
                time = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
                origin = origin or time
                num_prompt_tokens = self._scaling.prompt(int(row["ContextTokens"]), 0)
                request = Request(
                    (), num_prompt_tokens, self._scaling.output(int(row["GeneratedTokens"])), 0.0, num_prompt_tokens
                )
                yield Session((((request,),),), (time - origin).total_seconds(), number, 0)
