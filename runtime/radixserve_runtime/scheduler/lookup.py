"""Guessing what a sequence goes on with from its own text (prompt lookup).

Agents quote: a tool's answer, the code that they change, their own last attempt. Where the newest tokens of a sequence have
occurred in it before, what followed then is a guess at what follows now, and goes through the model as a draft (sequence.py). The
logits confirm it or don't, so a guess changes how long an answer takes and never what it says.

A row more costs time, for everybody in the step. So a guess is as long as the step that carries it is expected to bring more tokens
a second for it: a step that reads all weights for one sequence has room for long shots, one of sixteen sequences for good
bets alone. Nothing but the sequence's own tokens is looked at, so a tenant learns from speed no more of another's text than that it
repeats itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from radixserve_runtime.cache.node import TokenRun

#: So many tokens have to have occurred before. Two go on alike in less than half of all cases.
MIN_MATCH = 3
#: How far back it is looked how many tokens agree.
MAX_MATCH = 32
MAX_GUESS = 16
#: Places where the bytes agree across the border of two tokens, after which the search is given up: few texts have any.
_MOST_MISALIGNED = 64
#: Of a step's time, the least that a row is taken to cost: where the learned costs say nothing, as after the first steps.
_LEAST_ROW_SHARE = 1 / 256

#: Of a step's time without guesses: what they may add where streams of other tenants wait for the same step, or of a higher class might.
OTHERS_SHARE = 0.25
#: And where prompts wait to be read in it: time that guesses take they lose, though the streams that guess are done the sooner.
PROMPTS_SHARE = 0.5

#: Guesses that a sequence's record begins with, as if they had gone as expected; and what a record keeps of itself at each new one.
_PRIOR_GUESSES = 3.0
_KEEP = 0.95


def match_chance(num_tokens: int) -> float:
    """Of a text whose last tokens have occurred before: how likely the next one is the same, too.

    Laplace's rule of succession, without its prior. Measured on answers, summaries and edited code of SmolLM2-135M: 0.70 after 3
    tokens, 0.84 after 6, 0.92 after 11, 0.98 after 16 and more.
    """
    return num_tokens / (num_tokens + 1)


@dataclass(slots=True)
class Record:
    """How the guesses of one sequence have fared, the latest most."""

    expected: float = _PRIOR_GUESSES
    accepted: float = _PRIOR_GUESSES
    num_matched: int = 0
    """Tokens that agree before the first token of the draft under way; 0: it is no guess."""

    def settle(self, accepted: bool) -> None:
        """The next token of the draft under way was drawn, or another one."""
        if not self.num_matched:
            return
        self.expected = self.expected * _KEEP + match_chance(self.num_matched)
        self.accepted = self.accepted * _KEEP + accepted
        self.num_matched = self.num_matched + 1 if accepted else 0

    def chances(self, num_matched: int) -> Iterator[float]:
        """For each token of a guess, how likely it and all before it are drawn."""
        trust, chance = self.accepted / self.expected, 1.0
        while True:
            chance *= min(trust, 1.0) * match_chance(num_matched)
            yield chance
            num_matched += 1


def last_match(tokens: TokenRun) -> tuple[int, int]:
    """Where the newest tokens have occurred last: (place of what followed, how many tokens agree before it). (0, 0): nowhere.

    A search of memory: 5 µs for 8,000 tokens.
    """
    memory, size = tokens.tobytes(), tokens.itemsize
    wanted = memory[-MIN_MATCH * size :]
    if len(wanted) < MIN_MATCH * size:
        return 0, 0
    place = memory.rfind(wanted, 0, len(memory) - size)
    for _ in range(_MOST_MISALIGNED):
        if place < 0 or not place % size:
            break
        place = memory.rfind(wanted, 0, place + len(wanted) - 1)
    if place < 0 or place % size:
        return 0, 0
    follows = place // size + MIN_MATCH
    num_matched, most = MIN_MATCH, min(MAX_MATCH, follows)
    while num_matched < most and tokens[follows - num_matched - 1] == tokens[-num_matched - 1]:
        num_matched += 1
    return follows, num_matched


def continuation(tokens: TokenRun, follows: int, count: int) -> list[int]:
    """What followed; where that is the newest token already, on and on."""
    period = len(tokens) - follows
    return [tokens[follows + index % period] for index in range(count)]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that is going to decode, and what a token of a guess would cost."""

    tokens: TokenRun
    record: Record
    most: int
    """Tokens that its guess may have."""
    row_s: float
    group: int = 0
    """Its tenant's number in this step."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The next tokens of a sequence, perhaps."""

    token_ids: list[int]
    num_matched: int


def guess(candidates: Sequence[Candidate], num_decodes: int, step_s: float, most_rows: int, most_s: float) -> list[Guess | None]:
    """For each candidate of a step its guess: together, what brings the most tokens a second.

    The step has `num_decodes` decodes and would take `step_s` without guesses. Those may have `most_rows` tokens, and take `most_s` for each group.
    """
    step_s = max(step_s, 1e-9)
    least_s = _LEAST_ROW_SHARE * step_s
    least = num_decodes / step_s  # tokens a second: no token that costs more than it brings is worth looking at
    matches = [last_match(candidate.tokens) if candidate.most > 0 else (0, 0) for candidate in candidates]
    bets: list[tuple[float, int, float]] = []  # tokens a second, whose, chance
    for index, (candidate, (_, num_matched)) in enumerate(zip(candidates, matches, strict=True)):
        if num_matched:
            for _, chance in zip(range(candidate.most), candidate.record.chances(num_matched), strict=False):
                row_s = max(candidate.row_s, least_s)
                if chance < least * row_s:
                    break
                bets.append((chance / row_s, index, chance))
    bets.sort(key=lambda bet: (-bet[0], bet[1]))
    counts = [0] * len(candidates)
    gained, left_s = float(num_decodes), dict.fromkeys((candidate.group for candidate in candidates), most_s)
    for rate, index, chance in bets:
        if most_rows <= 0 or rate * step_s < gained:
            break
        row_s, group = chance / rate, candidates[index].group
        if row_s > left_s[group]:
            continue
        counts[index] += 1
        most_rows -= 1
        gained += chance
        step_s += row_s
        left_s[group] -= row_s
    return [
        Guess(continuation(candidate.tokens, follows, count), num_matched) if count else None
        for candidate, (follows, num_matched), count in zip(candidates, matches, counts, strict=True)
    ]


def most_added_s(step_s: float, target_s: float, *, others_wait: bool, prompts_wait: bool) -> float:
    """Seconds that guesses may add to a step: within a target (0: none), and a part of it where others wait for it."""
    within = max(0.0, target_s - step_s) if target_s > 0 else math.inf
    if prompts_wait:
        within *= PROMPTS_SHARE
    share = OTHERS_SHARE if others_wait else PROMPTS_SHARE if prompts_wait else math.inf
    return min(within, share * step_s)
