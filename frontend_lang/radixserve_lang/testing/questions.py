"""One op that wants a value, as whoever answers it sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from radixserve_lang.testing.branches import Item, render
from radixserve_tokenizer.protocol import Gen, Score, Select

if TYPE_CHECKING:
    from radixserve_lang.testing.branches import Branch, Program, ValueOp
    from radixserve_tokenizer.protocol import Budget


@dataclass(frozen=True, slots=True)
class Question:
    """`index` counts the ops with a value that have run on the branch."""

    program: int
    path: tuple[int, ...]
    index: int
    op: ValueOp
    items: tuple[Item, ...]
    num_seen: int
    request: dict[str, Any]
    """What is asked, as plain data without numbers."""
    budget: Budget | None = None
    """Of the whole program, like `seed`."""
    seed: int | None = None

    @property
    def kind(self) -> str:
        """ "gen", "select" or "score"."""
        return type(self.op).__name__.lower()

    @property
    def place(self) -> str:
        """For messages: the op, its line and its branch."""
        branch = "/".join(map(str, self.path))
        return f"{self.kind} at {self.op.where or 'an unknown line'}" + (f" on branch {branch}" if branch else "")

    @property
    def text(self) -> str:
        """All that the branch holds."""
        return render(list(self.items), answering=isinstance(self.op, Gen))

    @property
    def context(self) -> list[dict[str, Any]]:
        """What was appended since the question before it, as plain data; raw texts in a row are one."""
        found: list[dict[str, Any]] = []
        for item in self.items[self.num_seen :]:
            if item.is_generated:
                continue
            if found and not item.role and not found[-1]["role"]:
                found[-1]["text"] += item.text
            else:
                extra = {"fields": dict(item.fields)} if item.fields else {}
                found.append({"role": item.role, "text": item.text, **extra})
        return found


def question(number: int, program: Program, branch: Branch, op: ValueOp) -> Question:
    """What `op` asks now."""
    return Question(
        program=number,
        path=branch.path,
        index=branch.num_asked,
        op=op,
        items=tuple(branch.items),
        num_seen=branch.num_seen,
        request=_request(branch, op),
        budget=program.opening.budget,
        seed=program.opening.seed,
    )


def _request(branch: Branch, op: ValueOp) -> dict[str, Any]:
    match op:
        case Gen():
            asked: dict[str, Any] = {"sampling": msgspec.to_builtins(op.sampling, str_keys=True)}
            if op.constraint is not None:
                asked["constraint"] = msgspec.to_builtins(op.constraint)
            if op.tool_use is not None:
                asked["tool_use"] = msgspec.to_builtins(op.tool_use)
                asked["tools"] = msgspec.to_builtins(branch.tools)
            return asked
        case Select() | Score():
            return {"options": list(op.options), "method": op.method}
