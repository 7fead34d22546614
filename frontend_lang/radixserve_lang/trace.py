"""The tree of a program: what each branch held, what it cost, what came from the cache."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from radixserve_lang.errors import OpCancelledError, ProgramEndedError, RadixServeError
from radixserve_tokenizer.protocol import Done, Usage

if TYPE_CHECKING:
    from radixserve_lang.records import BranchRecord, OpRecord
    from radixserve_lang.var import Var

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


def trace_of(root: BranchRecord) -> Trace:
    """As things stand now."""
    return Trace(_branch(root))


def _branch(record: BranchRecord) -> TraceBranch:
    return TraceBranch(record.path, tuple(_step(op) for op in list(record.ops)))


def _step(op: OpRecord) -> TraceStep:
    if op.kind == "append":
        text = "".join(part if isinstance(part, str) else _value(part) for part in op.parts)
        return TraceStep(op.role or "text", op.where, text, "failed" if op.failure else "done")
    if op.kind == "fork":
        branches = tuple(_branch(branch) for branch in op.forks)
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
    return f"{cost} + {usage.output_tokens} out" if usage.output_tokens else cost
