"""The tree of a program: what each branch held, what it cost, what came from the cache."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from radixserve_lang.errors import OpCancelledError, ProgramEndedError, RadixServeError
from radixserve_lang.trace_html import fragment, page
from radixserve_tokenizer.protocol import Done, Usage

if TYPE_CHECKING:
    import os

    from radixserve_lang.records import BranchRecord, OpRecord
    from radixserve_lang.var import Var

JSON_VERSION = 1
#: Text of a segment that is shown on one line.
SHOWN_CHARS = 72


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One op: a message or text, a generation, a choice, or a fork with its branches."""

    kind: str
    """ "text", the message's role, "gen", "select", "score", "fork", "tools", "lease" or "release"."""
    where: str
    text: str
    """What was appended or generated (for score: the best option)."""
    status: str
    """ "done", "failed", "cancelled", "unfinished" or, of a lease, "lost"."""
    usage: Usage | None = None
    """Of ops with a value that are done."""
    scores: tuple[tuple[str, float], ...] = ()
    num_refused: int = 0
    """Attempts whose value was taken back (`usage` is the last one's)."""
    branches: tuple[TraceBranch, ...] = ()
    new_tokens: int = 0
    """Of ops with a value: tokens that the branch got since its op before, by what was appended."""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls: name and arguments (JSON)."""
    reasoning: str = ""
    finish_reason: str = ""
    error: str = ""
    """Of one that failed: what it raises."""
    began_s: float = 0.0
    """When the program made it, from the program's first op."""
    ended_s: float | None = None
    """When its value, or failure, came; None for ops without a value."""


@dataclass(frozen=True, slots=True)
class TraceBranch:
    """One branch and what happened on it, in order."""

    path: tuple[int, ...]
    steps: tuple[TraceStep, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The whole program. `print(run.trace)` draws it; rich consoles draw it in colour."""

    root: TraceBranch

    def __rich__(self) -> Tree:
        tree = Tree(Text("program", style="bold"))
        _draw(self.root, tree)
        return tree

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=120, color_system=None).print(self)
        return out.getvalue().rstrip("\n")

    def to_json(self, *, indent: int | None = None) -> str:
        """The same as data: `{"version": 1, "root": {"path": [], "steps": [...]}}`, with the fields of `TraceStep`."""
        return json.dumps({"version": JSON_VERSION, "root": dataclasses.asdict(self.root, dict_factory=_plain)}, indent=indent)

    def to_html(self) -> str:
        """One page that needs nothing else: no script, no picture, no font from elsewhere. It follows the reader's light or dark."""
        return page(self.root)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file: HTML for `.html`, JSON for `.json`, else the text. Raises OSError."""
        kinds = {".html": self.to_html, ".json": self.to_json}
        target = Path(path)
        target.write_text(kinds.get(target.suffix, self.__str__)(), encoding="utf-8")

    def _repr_html_(self) -> str:
        """In a notebook."""
        return fragment(self.root)


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Usage is no dataclass."""
    return {name: msgspec.to_builtins(value) if isinstance(value, Usage) else value for name, value in items}


def trace_of(root: BranchRecord) -> Trace:
    """As things stand now."""
    return Trace(_branch(root, _Clock(root), 0))


class _Clock:
    """Times from the first op on."""

    def __init__(self, root: BranchRecord) -> None:
        self._began_ns = min((op.began_ns for op in root.ops), default=0)

    def at(self, ns: int) -> float:
        """In seconds."""
        return (ns - self._began_ns) / 1e9


def _branch(record: BranchRecord, clock: _Clock, num_tokens: int) -> TraceBranch:
    """`num_tokens`: what the branch held at its last op with a value, before its fork."""
    steps: list[TraceStep] = []
    for op in list(record.ops):
        step = _step(op, clock, num_tokens)
        steps.append(dataclasses.replace(step, began_s=clock.at(op.began_ns), **_of_value(op, clock, num_tokens)))
        done = None if op.cell is None else op.cell.outcome
        if isinstance(done, Done):
            num_tokens = done.num_branch_tokens or num_tokens
    return TraceBranch(record.path, tuple(steps))


def _of_value(op: OpRecord, clock: _Clock, num_tokens: int) -> dict[str, Any]:
    """What only ops with a value have."""
    if op.cell is None:
        return {"error": "" if op.failure is None else str(op.failure)}
    outcome = op.cell.outcome
    ended: dict[str, Any] = {"ended_s": clock.at(op.cell.settled_ns) if op.cell.settled_ns else None}
    if isinstance(outcome, Done):
        ended["new_tokens"] = max(0, outcome.usage.prompt_tokens - num_tokens)
        ended["calls"] = tuple((call.name, call.arguments) for call in outcome.calls)
        ended["reasoning"] = outcome.reasoning
        ended["finish_reason"] = outcome.finish_reason if op.kind == "gen" else ""
    elif outcome is not None and _status(outcome) == "failed":
        ended["error"] = str(outcome)
    return ended


def _step(op: OpRecord, clock: _Clock, num_tokens: int) -> TraceStep:
    if op.kind == "append":
        text = "".join(part if isinstance(part, str) else _value(part) for part in op.parts)
        return TraceStep(op.role or "text", op.where, text, "failed" if op.failure else "done")
    if op.kind == "fork":
        branches = tuple(_branch(branch, clock, num_tokens) for branch in op.forks)
        return TraceStep("fork", op.where, "", "failed" if op.failure else "done", branches=branches)
    if op.cell is None:
        return TraceStep(op.kind, op.where, op.detail, "failed" if op.failure else "lost" if op.is_lost else "done")
    outcome = op.cell.outcome
    refused = 0 if op.check is None else len(op.check.refused)
    if isinstance(outcome, Done):
        scores = tuple((score.option, score.score) for score in outcome.scores)
        return TraceStep(op.kind, op.where, _said(outcome), "done", usage=outcome.usage, scores=scores, num_refused=refused)
    return TraceStep(op.kind, op.where, op.cell.text, _status(outcome), num_refused=refused)


def _said(done: Done) -> str:
    """The text, and the calls beside it."""
    return " ".join([done.value] * bool(done.value) + [f"{call.name}({call.arguments})" for call in done.calls])


def _value(part: Var[Any]) -> str:
    """A value inside an append, as far as it is known."""
    known = part.peek()
    return f"<{part.place}>" if known is None else known


def _status(outcome: RadixServeError | None) -> str:
    if outcome is None:
        return "unfinished"
    return "cancelled" if isinstance(outcome, OpCancelledError | ProgramEndedError) else "failed"


# ---- drawing -------------------------------------------------------------------------------------------------------


def _draw(branch: TraceBranch, tree: Tree) -> None:
    for step in branch.steps:
        node = tree.add(_line(step))
        for child in step.branches:
            name = "branch " + ".".join(map(str, child.path))
            _draw(child, node.add(Text(name, style="magenta")))


def _line(step: TraceStep) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(step.kind, style="bold cyan" if step.usage is not None else "bold")
    if step.branches:
        line.append(f" into {len(step.branches)}")
    if step.usage is not None:
        line.append("  " + _cost(step.usage), style="green")
    if step.num_refused:
        line.append(f"  {step.num_refused} refused", style="yellow")
    if step.status != "done":
        line.append(f"  {step.status}", style="red")
    shown = " ".join(step.text.split())
    if shown:
        line.append("  " + (shown if len(shown) <= SHOWN_CHARS else shown[: SHOWN_CHARS - 3] + "..."))
    if step.scores:
        line.append("  [" + ", ".join(f"{option.strip()} {score:.2f}" for option, score in step.scores) + "]", style="dim")
    return line


def _cost(usage: Usage) -> str:
    cost = f"{usage.prompt_tokens} prompt ({usage.cached_tokens} cached)"
    if usage.output_tokens:
        cost += f" + {usage.output_tokens} out"
    ran_s = usage.prefill_s + usage.decode_s
    if usage.queued_s >= 0.001:  # less is no wait that anyone would ask about
        cost += f", waited {usage.queued_s:.3f} s"
    return f"{cost}, ran {ran_s:.3f} s" if ran_s else cost
