"""A choice's output as its client gets it: deltas as they come, and at the end what no delta had."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_tokenizer.protocol import CallDelta, Delta, Done, TokenLogprob


class Reasoning(NamedTuple):
    """More of the reasoning."""

    text: str


class Text(NamedTuple):
    """More of the text."""

    text: str


class CallBegin(NamedTuple):
    """A call begins."""

    call: int
    """Its number in the answer, from 0."""
    id: str
    name: str


class Arguments(NamedTuple):
    """More of a call's arguments."""

    call: int
    """Its number in the answer, from 0."""
    text: str


Piece: TypeAlias = Reasoning | Text | CallBegin | Arguments


class Output:
    """How much of one choice has been handed on. Deltas may stop short of the end: `Done` has all of it."""

    __slots__ = ("_arguments", "num_chars", "num_logprobs", "num_reasoning_chars")

    def __init__(self) -> None:
        self.num_chars = 0
        self.num_reasoning_chars = 0
        self.num_logprobs = 0
        self._arguments: dict[int, int] = {}

    def delta(self, delta: Delta) -> tuple[list[Piece], tuple[TokenLogprob, ...]]:
        """What a delta adds, and the log-probabilities of its tokens."""
        self.num_logprobs += len(delta.logprobs)
        return [*self._say(delta.reasoning, delta.text), *self._calls(delta.calls)], delta.logprobs

    def rest(self, done: Done) -> tuple[list[Piece], tuple[TokenLogprob, ...]]:
        """What is left at the end."""
        pieces = list(self._say(done.reasoning[self.num_reasoning_chars :], done.value[self.num_chars :]))
        for index, call in enumerate(done.calls):
            if index not in self._arguments:
                pieces.append(CallBegin(index, call.id, call.name))
                self._arguments[index] = 0
            rest = call.arguments[self._arguments[index] :]
            if rest:
                self._arguments[index] += len(rest)
                pieces.append(Arguments(index, rest))
        return pieces, done.logprobs[self.num_logprobs :]

    def _say(self, reasoning: str, text: str) -> Iterable[Piece]:
        if reasoning:
            self.num_reasoning_chars += len(reasoning)
            yield Reasoning(reasoning)
        if text:
            self.num_chars += len(text)
            yield Text(text)

    def _calls(self, calls: Iterable[CallDelta]) -> Iterable[Piece]:
        for call in calls:
            if call.index not in self._arguments:
                self._arguments[call.index] = 0
                yield CallBegin(call.index, call.id, call.name)
            if call.arguments:
                self._arguments[call.index] += len(call.arguments)
                yield Arguments(call.index, call.arguments)
