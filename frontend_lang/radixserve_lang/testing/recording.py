"""The file of a recording: JSON lines, one for the whole, one for each program, and one for each op with a value.

    {"radixserve_recording": 1, "model": {...}}
    {"program": 0, "seed": 7}
    {"program": 0, "path": [], "index": 0, "kind": "gen", "where": "app.py:3 in chat", "context": [...], "request": {...},
     "order": 0, "done": {...}}

`context` is what the branch got since its op before; `order` counts the outcomes of a program as they came. An outcome is
`done` or `failed`, by the fields of the protocol's events; an op without one was still running when its program ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from radixserve_lang.testing.errors import RecordingError
from radixserve_tokenizer.protocol import Done, Failed, ModelCard

if TYPE_CHECKING:
    import os

    from radixserve_lang.testing.questions import Question

VERSION = 1

#: Which op: the branch's path, and its number among the branch's ops with a value.
Key: TypeAlias = tuple[tuple[int, ...], int]

#: Fields of the events that say nothing outside of their run.
_NUMBERS = ("t", "program", "op", "var")


@dataclass(frozen=True, slots=True)
class RecordedOp:
    """One op with a value, and what came of it."""

    kind: str
    where: str
    context: list[dict[str, Any]]
    request: dict[str, Any]
    outcome: Done | Failed | None = None
    order: int = -1

    def asks_like(self, other: RecordedOp) -> bool:
        """The same question; the line may differ."""
        return (self.kind, self.context, self.request) == (other.kind, other.context, other.request)


@dataclass(slots=True)
class RecordedProgram:
    """One run."""

    seed: int | None = None
    ops: dict[Key, RecordedOp] = field(default_factory=dict[Key, RecordedOp])


@dataclass(slots=True)
class Recording:
    """A whole file."""

    model: ModelCard
    programs: list[RecordedProgram] = field(default_factory=list[RecordedProgram])


def op_of(asked: Question, outcome: Done | Failed | None = None, order: int = -1) -> RecordedOp:
    """A question as it is kept. Through JSON and back, so that it equals what a file gives."""
    plain = json.loads(json.dumps([asked.context, asked.request]))
    return RecordedOp(asked.kind, asked.op.where, plain[0], plain[1], outcome, order)


# ---- writing -------------------------------------------------------------------------------------------------------


def header(model: ModelCard) -> dict[str, Any]:
    """The first line."""
    return {"radixserve_recording": VERSION, "model": msgspec.to_builtins(model)}


def line_of(program: int, key: Key, op: RecordedOp) -> dict[str, Any]:
    """One op."""
    row: dict[str, Any] = {
        "program": program,
        "path": list(key[0]),
        "index": key[1],
        "kind": op.kind,
        "where": op.where,
        "context": op.context,
        "request": op.request,
    }
    if op.outcome is not None:
        row["order"] = op.order
        fields = msgspec.to_builtins(op.outcome, str_keys=True)
        row["done" if isinstance(op.outcome, Done) else "failed"] = {k: v for k, v in fields.items() if k not in _NUMBERS}
    return row


# ---- reading -------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Recording:
    """A recording; raises `RecordingError`."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    try:
        rows = [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise RecordingError(f"{path} is no recording: {error}; record it again with rs.testing.record") from error
    if not rows or not isinstance(rows[0], dict) or "radixserve_recording" not in rows[0]:
        raise RecordingError(f"{path} is no recording; make one with rs.testing.record")
    if rows[0]["radixserve_recording"] != VERSION:
        found = rows[0]["radixserve_recording"]
        raise RecordingError(f"{path} has version {found} of recordings, this is version {VERSION}; record it again")
    try:
        recording = Recording(msgspec.convert(rows[0]["model"], ModelCard))
        for row in rows[1:]:
            _read_row(recording, row)
    except (KeyError, TypeError, IndexError, msgspec.ValidationError) as error:
        raise RecordingError(f"{path} is damaged ({error}); record it again") from error
    return recording


def _read_row(recording: Recording, row: dict[str, Any]) -> None:
    number = row["program"]
    while len(recording.programs) <= number:
        recording.programs.append(RecordedProgram())
    program = recording.programs[number]
    if "path" not in row:
        program.seed = row["seed"]
        return
    outcome: Done | Failed | None = None
    if "done" in row:
        outcome = msgspec.convert({"t": "done", "program": 0, "op": 0, "var": 0, **row["done"]}, Done, str_keys=True)
    elif "failed" in row:
        outcome = msgspec.convert({"t": "failed", "program": 0, "op": 0, **row["failed"]}, Failed, str_keys=True)
    program.ops[tuple(row["path"]), row["index"]] = RecordedOp(
        row["kind"], row["where"], row["context"], row["request"], outcome, row.get("order", -1)
    )
