"""Which recorded run a program follows. Programs of a batch come in any order, and may begin alike."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixserve_lang.testing.recording import RecordedProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve_lang.testing.recording import Key, RecordedOp
    from radixserve_tokenizer.protocol import Done, Failed

_SHOWN_CHARS = 60


@dataclass(slots=True, eq=False)
class Playing:
    """A program that runs, and the recorded run that it follows (`number` -1: none)."""

    seed: int | None
    number: int = -1
    run: RecordedProgram = field(default_factory=RecordedProgram)
    asked: dict[Key, RecordedOp] = field(default_factory=dict["Key", "RecordedOp"])
    _ops: dict[Key, int] = field(default_factory=dict["Key", int])
    _waiting: dict[int, tuple[int, Done | Failed]] = field(default_factory=dict[int, "tuple[int, Done | Failed]"])
    skipped: set[int] = field(default_factory=set[int])
    turn: int = 0
    """Outcomes before this one have been told."""
    has_diverged: bool = False
    """It has asked for something else, and been told so."""
    is_over: bool = False
    """It has ended, and keeps its run."""

    def ask(self, key: Key, found: RecordedOp, op: int) -> None:
        """An op that the run has; `op` is its number."""
        self.asked[key] = found
        self._ops[key] = op
        self._await(key, op)

    def follow(self, number: int, run: RecordedProgram) -> None:
        """From now on this run, which is the same so far."""
        self.number, self.run = number, run
        self._waiting.clear()
        for key, op in self._ops.items():
            self._await(key, op)

    def _await(self, key: Key, op: int) -> None:
        recorded = self.run.ops[key]
        if recorded.outcome is not None and recorded.order >= self.turn:
            self._waiting[recorded.order] = (op, recorded.outcome)

    def skip(self, paths: set[tuple[int, ...]]) -> None:
        """These branches were cancelled: nobody waits for their outcomes."""
        self.skipped |= {op.order for (path, _), op in self.run.ops.items() if path in paths and op.outcome is not None}

    def left_over(self) -> list[RecordedOp]:
        """What the run has asked for and been told, and this program has not come to. Branches that were cancelled are left out."""
        ops = self.run.ops.items() if self.number >= 0 and not self.has_diverged else ()
        return [op for key, op in ops if key not in self.asked and op.outcome is not None and op.order not in self.skipped]

    def next_outcome(self) -> tuple[int, Done | Failed] | None:
        """The op whose outcome comes next, if it has been asked."""
        while self.turn in self.skipped:
            self.turn += 1
        due = self._waiting.pop(self.turn, None)
        self.turn += due is not None
        return due

    def could_follow(self, run: RecordedProgram) -> bool:
        """Whether that run asked all of this, and was told what this program has been told."""
        for key, op in self.asked.items():
            other = run.ops.get(key)
            if other is None or not other.asks_like(op):
                return False
            mine = self.run.ops.get(key)
            if mine is not None and 0 <= mine.order < self.turn and (mine.outcome, mine.order) != (other.outcome, other.order):
                return False
        return True


class Runs:
    """The recorded runs; each is followed by one program at most."""

    def __init__(self, runs: list[RecordedProgram]) -> None:
        self._runs = runs
        self._followers: dict[int, Playing] = {}
        self._by_op: dict[str, list[int]] = {}
        for number, run in enumerate(runs):
            for key, op in run.ops.items():
                self._by_op.setdefault(_signature(key, op), []).append(number)

    def expected(self, playing: Playing, key: Key, found: RecordedOp, op: int) -> RecordedOp | None:
        """What the run that `playing` follows has at `key`; where that is not what was asked, it follows another if it can."""
        there = playing.run.ops.get(key)
        if there is None or not there.asks_like(found):
            trying = Playing(playing.seed, playing.number, playing.run, playing.asked | {key: found}, turn=playing.turn)
            number = self._find(trying, _signature(key, found), {playing.number}, playing)
            if number is not None:
                self._give(playing, number)
            elif playing.number < 0:
                self._give_any(playing)
            there = playing.run.ops.get(key)
        if there is not None and there.asks_like(found):
            playing.ask(key, found, op)
        return there

    def _find(self, trying: Playing, signature: str, tried: set[int], owner: Playing) -> int | None:
        """A run for `trying`; who follows it now gets another one, or it is not taken (augmenting paths, Kuhn)."""
        for number in self._candidates(trying, signature):
            if number in tried:
                continue
            tried.add(number)
            follower = self._followers.get(number)
            if follower is None or follower is owner:
                return number
            if follower.is_over or not follower.asked:
                continue
            key, op = next(reversed(follower.asked.items()))
            tried.discard(owner.number)  # what the owner leaves is free
            other = self._find(follower, _signature(key, op), tried, owner)
            if other is not None:
                self._give(follower, other)
                return number
        return None

    def _candidates(self, trying: Playing, signature: str) -> Iterator[int]:
        numbers = self._by_op.get(signature, [])
        for same_seed in (True, False):
            for number in numbers:
                if (self._runs[number].seed == trying.seed) is same_seed and trying.could_follow(self._runs[number]):
                    yield number

    def _give(self, playing: Playing, number: int) -> None:
        if self._followers.get(playing.number) is playing:
            del self._followers[playing.number]
        self._followers[number] = playing
        playing.follow(number, self._runs[number])

    def _give_any(self, playing: Playing) -> None:
        """Nothing fits: the difference to the first run that is left is shown."""
        number = next((n for n in range(len(self._runs)) if n not in self._followers), None)
        if number is not None:
            self._give(playing, number)


def _signature(key: Key, op: RecordedOp) -> str:
    return json.dumps([key, op.kind, op.context, op.request], sort_keys=True)


def difference(expected: RecordedOp | None, found: RecordedOp) -> str:
    """What a program asks otherwise than the recorded run."""
    if expected is None:
        return "it has no such op on this branch"
    if expected.kind != found.kind:
        return f"there it was a {expected.kind} (at {expected.where})"
    for number, (old, new) in enumerate(zip(expected.context, found.context, strict=False)):
        if old != new:
            return f"part {number + 1} of what was appended before it {_changed(_shown(old), _shown(new))}"
    if len(expected.context) != len(found.context):
        return f"{len(expected.context)} parts were appended before it, now {len(found.context)}"
    names = [
        name for name in expected.request.keys() | found.request.keys() if expected.request.get(name) != found.request.get(name)
    ]
    name = min(names)
    return f"{name} {_changed(json.dumps(expected.request.get(name)), json.dumps(found.request.get(name)))}"


def _shown(part: dict[str, Any]) -> str:
    return f"{part['role']}: {part['text']}" if part["role"] else str(part["text"])


def _changed(old: str, new: str) -> str:
    """From where they differ on."""
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(0, start - 15)
    lead = "..." if start else ""
    return f"was {lead}{old[start : start + _SHOWN_CHARS]!r} and is {lead}{new[start : start + _SHOWN_CHARS]!r}"
