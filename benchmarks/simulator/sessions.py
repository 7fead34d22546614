"""What a trace says, whatever its form: sessions of requests, as block ids and lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Inclusive ranges of block ids, in the order of the prompt.
Blocks: TypeAlias = tuple[tuple[int, int], ...]


def num_blocks(blocks: Blocks) -> int:
    """Blocks of a prompt."""
    return sum(last - first + 1 for first, last in blocks)


def starts_with(blocks: Blocks, prefix: Blocks) -> bool:
    """Whether a prompt begins with all blocks of another; ranges may be cut differently. O(ranges)."""
    wanted = iter(prefix)
    first, last = next(wanted, (0, -1))
    for have, have_last in blocks:
        while first <= last:
            if have > have_last:
                break
            if have != first:
                return False
            step = min(have_last - have, last - first) + 1
            have, first = have + step, first + step
            if first > last:
                first, last = next(wanted, (0, -1))
        if first > last:
            return True
    return first > last


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the model, in tokens of the simulation (after `--scale-length`)."""

    blocks: Blocks
    """Ids of the prompt's full blocks."""
    num_prompt_tokens: int
    num_output_tokens: int
    think_s: float
    """Tool and user time between the end of what came before and this request."""
    num_new_tokens: int
    """Prompt tokens that a cache without limit would not have, shared first blocks aside."""
    is_extended: bool = False
    """Whether the next request of its chain begins with this prompt: its output then is part of that prompt."""
    calls_tool: bool = False
    """Whether it stopped to call a tool, so that its session goes on with the same branch."""


#: Requests that follow each other.
Chain: TypeAlias = tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """One program: stages follow each other; the chains of a stage (sub-agents) run side by side."""

    stages: tuple[tuple[Chain, ...], ...]
    start_s: float | None
    """When the trace has it start, or None where the trace has no common clock."""
    group: int
    """What sessions of one conversation have in common; they stay with one tenant."""
    highest_block: int
    """Block ids are 0 to this one."""
    num_shared_blocks: int = 0
    """The first ids (0 .. n-1) stand for the same text in every session with the same `shared_key`."""
    shared_key: int = 0
    blocks_are_global: bool = False
    """Whether equal ids of different sessions are the same text."""

    def requests(self) -> Iterator[Request]:
        """All requests."""
        for stage in self.stages:
            for chain in stage:
                yield from chain

    @property
    def num_requests(self) -> int:
        """All requests."""
        return sum(len(chain) for stage in self.stages for chain in stage)


class Trace(Protocol):
    """A file that can be read again and again, a session at a time."""

    block_tokens: int
    """Tokens of a block in the simulation."""
    scale: float
    """By what lengths were multiplied (a block is a whole number of tokens, so this may differ a little from what was asked)."""

    def sessions(self) -> Iterator[Session]:
        """From the first to the last. Nothing is kept in memory but the session at hand and which blocks were seen."""
        ...
