"""What a stand-in for a server remembers of programs: text instead of tokens, in the protocol's own terms."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from radixserve_tokenizer.protocol import Gen, Op, Open, Score, Select, ToolSpec

    ValueOp: TypeAlias = Gen | Select | Score

#: A word with the space after it stands for a token.
_WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class Item:
    """Something that a branch holds: a message (with a role), raw text, or what was generated."""

    text: str
    role: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """What a branch held before an op."""

    num_items: int
    num_seen: int
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class Poison:
    """The op that failed, and why."""

    op: int
    message: str
    status: int = 500


@dataclass(slots=True, eq=False)
class Branch:
    """One line of a program."""

    number: int
    path: tuple[int, ...]
    born: bool = False
    items: list[Item] = field(default_factory=list[Item])
    num_seen: int = 0
    """Items that an earlier question of this line had before it; the rest is new to the next one."""
    num_cached: int = 0
    """Words that have been computed."""
    tools: tuple[ToolSpec, ...] = ()
    queue: deque[Op] = field(default_factory=deque[Any])
    running: ValueOp | None = None
    poison: Poison | None = None
    marks: dict[int, Mark] = field(default_factory=dict[int, Mark])
    num_asked: int = 0
    num_children: int = 0

    def mark(self) -> Mark:
        """What it holds now."""
        return Mark(len(self.items), self.num_seen, self.tools)

    def restore(self, mark: Mark) -> None:
        """Go back to what it held then."""
        del self.items[mark.num_items :]
        self.num_seen = min(mark.num_seen, mark.num_items)
        self.tools = mark.tools

    def inherit(self, parent: Branch) -> None:
        """The fork that makes it is reached."""
        self.born = True
        self.items = list(parent.items)
        self.num_seen = parent.num_seen
        self.num_cached = parent.num_cached
        self.tools = parent.tools


@dataclass(slots=True, eq=False)
class Program:
    """One program of a client."""

    opening: Open
    branches: dict[int, Branch] = field(default_factory=dict[int, Branch])
    dropped: set[int] = field(default_factory=set[int])
    values: dict[int, str | Poison] = field(default_factory=dict[int, "str | Poison"])
    credits: int = 0


def render(items: list[Item], *, answering: bool) -> str:
    """What a model would read, in plain words: a line for each message, the assistant's turn open at the end where it answers."""
    lines: list[str] = []
    after_message = False
    for item in items:
        if item.role:
            lines.append(f"\n{item.role}: {item.text}")
        else:
            lines.append(f"\nassistant: {item.text}" if after_message else item.text)
        after_message = bool(item.role)
    if answering and after_message:
        lines.append("\nassistant: ")
    return "".join(lines).removeprefix("\n")


def words(text: str) -> list[str]:
    """Pieces that stand for tokens; joined they are the text."""
    found = _WORD.findall(text)
    return found if "".join(found) == text else [text]
