"""What a workload asks of a server, what came of it, and the two kinds of server as one contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from radixserve_lang.errors import RadixServeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: (role, content)
Message: TypeAlias = "tuple[str, str]"


class BenchError(RadixServeError):
    """A measurement that can't be made; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one turn asks for."""

    max_tokens: int
    exact: bool = True
    """Ask the server to go on past its end of sequence, so that every server writes as much."""
    n: int = 1
    temperature: float = 0.0
    seed: int | None = None
    schema: Mapping[str, Any] | None = None
    """JSON Schema that the text must match."""


@dataclass(slots=True)
class Outcome:
    """One turn as the client saw it. Times are seconds of one monotonic clock."""

    asked: Output
    sent_s: float
    key: int = 0
    """Which of the keys it was sent with."""
    label: str = ""
    """What the workload calls it (a turn, a kind), to group by."""
    first_s: float | None = None
    """Arrival of the first text; None: there was none."""
    ended_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list[float])
    """Between arrivals of text, for each choice by itself."""
    num_chunks: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reported_tokens: int | None = None
    """Output tokens by the server's own count."""
    texts: list[str] = field(default_factory=list[str])
    finish_reasons: list[str] = field(default_factory=list[str])
    error: str = ""
    """Why it failed; empty: it did not."""

    @property
    def output_tokens(self) -> int:
        """As the server counts; where it does not, or counts one choice of several, the pieces that arrived."""
        if self.reported_tokens is None:
            return self.num_chunks
        return max(self.reported_tokens, self.num_chunks) if self.asked.n > 1 else self.reported_tokens

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending to the first text."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds of an output token after the first; None where there is but one, or several choices."""
        if self.first_s is None or self.asked.n > 1 or self.output_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)


class Conversation(Protocol):
    """A branch of messages that turns are added to. One turn at a time."""

    async def say(self, messages: Sequence[Message], output: Output, label: str = "") -> Outcome:
        """Add messages, have one answer written and keep it. A failure is in the outcome, never raised.

        With `n` above 1 no answer is kept: the conversation should not go on.
        """
        ...

    async def fork(self, count: int) -> Sequence[Conversation]:
        """So many conversations that go on from here."""
        ...

    async def close(self) -> None:
        """It will not be used any more."""
        ...


class Target(Protocol):
    """A server. What it says of itself is known once it is open."""

    address: str
    model: str
    max_context: int
    """0: not known."""
    num_keys: int
    notes: list[str]
    """What was found out about it that a reader of the figures should know."""

    def converse(self, key: int = 0) -> Conversation:
        """A new conversation with one of the keys."""
        ...

    async def count(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt as the model sees it. Raises `BenchError` when the server does not tell."""
        ...

    async def close(self) -> None:
        """End all connections."""
        ...
