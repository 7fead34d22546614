"""What both ways of writing a program have in common: texts, sizes, seeds, and a tool that takes its time."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field

import radixserve as rs
from benchmarks.load import WORDS
from radixserve_tokenizer.programs.seeds import op_seed

SYSTEM = (
    "You are a careful assistant of a research library. You read what you are given, think in short steps, look things up "
    "when you have to, and answer in plain words. You never invent a source."
)
MARK = "Give this step a mark from 1 to 9."
NEXT = "Go on with the next step."
CONCLUDE = "Now write the answer."
ASK_AGAIN = "And of the words that are left, which matters most?"
EXPLAIN = "The votes were counted and checked. Explain the answer."
PROGRAMS = ("tree of thought", "self-consistency", "react")

Query = Annotated[str, Field(max_length=24, description="What to look for.")]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large programs are. Lengths are in words of one to two tokens, `output` in tokens."""

    context: int = 200
    output: int = 24
    depth: int = 2
    width: int = 3
    keep: int = 2
    votes: int = 5
    questions: int = 1
    turns: int = 4
    result: int = 30
    pause_s: float = 0.0


class Verdict(BaseModel):
    """What a voter says."""

    reason: Annotated[str, Field(max_length=40)]
    answer: Annotated[int, Field(ge=1, le=3)]


@dataclass(frozen=True, slots=True)
class Work:
    """One run of a program; its text is its number's alone."""

    number: int
    sizes: Sizes

    @property
    def question(self) -> str:
        """What the run is about: a text of its own, and a question."""
        return f"{self._words('text', self.sizes.context)}\nWhich of the three words in this text matters most?"

    def seed(self, place: str) -> int:
        """Of one request."""
        return int.from_bytes(hashlib.blake2b(f"{self.number} {place}".encode(), digest_size=4).digest(), "little")

    async def pause(self) -> None:
        """A tool is at work."""
        if self.sizes.pause_s:
            await asyncio.sleep(self.sizes.pause_s)

    def result(self, turn: int) -> str:
        """What the tool finds in a turn."""
        return self._words(f"result {turn}", self.sizes.result)

    def _words(self, what: str, count: int) -> str:
        rng = random.Random(f"{what} {self.number}")
        return " ".join(rng.choice(WORDS) for _ in range(count))


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of the `n` choices that a request with `seed` asks for."""
    return op_seed(seed, (choice,), 0)


def winner(answers: list[int]) -> int:
    """The answer with the most votes; of several the smallest."""
    return min(set(answers), key=lambda answer: (-answers.count(answer), answer))


def best(marks: list[int], keep: int) -> list[int]:
    """The places of the best marks, the earlier first among equals."""
    return sorted(range(len(marks)), key=lambda place: (-marks[place], place))[:keep]


def make_search(work: Work, queries: list[str]) -> rs.AsyncTool[..., str]:
    """The tool of a run. What was asked of it is kept in `queries`."""

    @rs.tool
    async def search(query: Query) -> str:
        """Search the catalogue of the library."""
        queries.append(query)
        await work.pause()
        return work.result(len(queries))

    return search
