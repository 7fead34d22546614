"""Sets of numbers, as `minimum`, `multipleOf`, `integer`, `enum` and their negations describe them.

A number is what is written: digits, perhaps a point and more digits, no exponent. So a set of numbers is a language of
numerals, which an automaton decides digit by digit, and sets can be cut with each other exactly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from radixserve_tokenizer.grammar.schema import automaton
from radixserve_tokenizer.grammar.schema.errors import TooComplexError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_tokenizer.grammar.schema.automaton import Automaton

MAX_WHOLE_DIGITS = 18
"""So an integer fits 64 bits, and no model writes digits to its token limit."""
MAX_FRACTION_DIGITS = 17
MAX_DECIMAL_DIGITS = 15
"""Of a number with a point that has to fulfil something: so many a double holds, so that whoever reads it as one sees the same."""
MAX_MULTIPLE_STATES = 2000

#: A bound: the value, and whether it belongs to the set itself.
Bound: TypeAlias = tuple[Fraction, bool]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that fulfil all of this."""

    low: Bound | None = None
    high: Bound | None = None
    integer: bool | None = None
    """True: whole numbers; False: all others; None: either."""
    multiples: frozenset[tuple[Fraction, bool]] = frozenset()
    """(divisor, whether the number must be a multiple)."""
    allowed: frozenset[Fraction] | None = None
    excluded: frozenset[Fraction] = frozenset()

    def meet(self, other: Numbers) -> Numbers | None:
        """Numbers of both; None where that can't be any."""
        integer = self.integer if other.integer is None else other.integer
        if self.integer is not None and integer != self.integer:
            return None
        if self.allowed is None or other.allowed is None:
            allowed = other.allowed if self.allowed is None else self.allowed
        else:
            allowed = self.allowed & other.allowed
        return Numbers(
            _tightest(self.low, other.low, 1),
            _tightest(self.high, other.high, -1),
            integer,
            self.multiples | other.multiples,
            allowed,
            self.excluded | other.excluded,
        ).settled()

    def settled(self) -> Numbers:
        """With the other conditions applied to a finite set."""
        if self.allowed is None:
            return self
        rest = replace(self, allowed=None)
        return Numbers(allowed=frozenset(value for value in self.allowed if rest.has(value)))

    def has(self, value: Fraction) -> bool:
        """Whether a number belongs to it."""
        if self.low is not None and (value < self.low[0] or (value == self.low[0] and not self.low[1])):
            return False
        if self.high is not None and (value > self.high[0] or (value == self.high[0] and not self.high[1])):
            return False
        if self.integer is not None and (value.denominator == 1) != self.integer:
            return False
        if value in self.excluded or (self.allowed is not None and value not in self.allowed):
            return False
        return all(((value / divisor).denominator == 1) == wanted for divisor, wanted in self.multiples)

    @property
    def is_free(self) -> bool:
        """Every number."""
        return self == Numbers()

    @property
    def is_plain_integer(self) -> bool:
        """Every whole number."""
        return self == Numbers(integer=True)

    @property
    def is_empty(self) -> bool:
        """No number at all. Raises `TooComplexError`."""
        if self.allowed is not None:
            return not self.allowed
        if self.low is not None and self.high is not None and self.low[0] > self.high[0]:
            return True
        return self.automaton(open_form=False).is_empty

    def automaton(self, *, open_form: bool) -> Automaton:
        """The numerals. `open_form`: whole numbers may be written with a point, too (1.0). Raises `TooComplexError`."""
        if self.allowed is not None and not open_form:
            return automaton.of_words(map(numeral, self.allowed))
        found = _numerals(False if self.integer and not open_form else None)
        if self.integer is not None:
            found &= _whole() if self.integer else _whole().complement
        if self.low is not None:
            found &= _beyond(self.low[0], "ge" if self.low[1] else "gt")
        if self.high is not None:
            found &= _beyond(self.high[0], "le" if self.high[1] else "lt")
        for divisor, wanted in sorted(self.multiples):
            found &= _multiple(divisor) if wanted else _multiple(divisor).complement
        for value in self.excluded:
            found &= _beyond(value, "ne")
        if self.allowed is not None:
            parts = [found & _beyond(value, "eq") for value in self.allowed]
            found = automaton.NOTHING
            for part in parts:
                found |= part
        return found


def _tightest(one: Bound | None, two: Bound | None, sign: int) -> Bound | None:
    if one is None or two is None:
        return two if one is None else one
    # Of two equal bounds the one that excludes its value.
    return max(one, two, key=lambda bound: (sign * bound[0], not bound[1]))


def exact(value: float) -> Fraction:
    """A JSON number as the value that it is written for: 0.1 is a tenth."""
    return Fraction(json.dumps(value))


def numeral(value: Fraction) -> str:
    """How a number is written. Raises `TooComplexError` if it takes too many digits."""
    digits, scale = value.denominator, 0
    while (10**scale * value).denominator != 1:
        scale += 1
        if scale > MAX_FRACTION_DIGITS:
            raise TooComplexError(f"a number with more than {MAX_FRACTION_DIGITS} digits after the point")
    digits = abs(int(value * 10**scale))
    text = str(digits).rjust(scale + 1, "0")
    if len(text) - scale > 300:
        raise TooComplexError("a number with more than 300 digits")
    return ("-" if value < 0 else "") + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)


_ZERO, _NINE, _POINT, _MINUS = ord("0"), ord("9"), ord("."), ord("-")


@lru_cache(maxsize=4)
def _numerals(fraction: bool | None) -> Automaton:
    """Every number in its plain form. `fraction`: False for none. No leading zeros, no minus zero."""

    def step(state: tuple[str, int, bool]) -> Iterable[tuple[int, int, tuple[str, int, bool]]]:
        # (where, digits there, whether a minus waits for a digit other than 0)
        where, count, owing = state
        if where == "start" and not owing:
            yield _MINUS, _MINUS, ("start", 0, True)
        if where == "start":
            yield _ZERO, _ZERO, ("zero", 1, owing)
            yield _ZERO + 1, _NINE, ("whole", 1, False)
        if where == "whole" and count < MAX_WHOLE_DIGITS:
            yield _ZERO, _NINE, ("whole", count + 1, False)
        if where in ("zero", "whole") and fraction is not False and count < MAX_DECIMAL_DIGITS:
            yield _POINT, _POINT, ("point", count, owing)
        if where in ("point", "fraction") and count < MAX_DECIMAL_DIGITS:
            yield _ZERO, _ZERO, ("fraction", count + 1, owing)
            yield _ZERO + 1, _NINE, ("fraction", count + 1, False)

    return automaton.explore(
        ("start", 0, False),
        step,
        lambda state: not state[2] and state[0] in ("zero", "whole", "fraction"),
    )


@lru_cache(maxsize=1)
def _whole() -> Automaton:
    """Numerals of whole numbers: no digit but 0 after the point."""

    def step(state: str) -> Iterable[tuple[int, int, str]]:
        yield _ZERO, _ZERO, state
        if state != "fraction":
            yield _ZERO + 1, _NINE, "whole"
            yield _MINUS, _MINUS, "whole"
            yield _POINT, _POINT, "fraction"

    return automaton.explore("whole", step, lambda state: True)


#: Of a numeral's value against another: which results belong to the set.
_RESULTS = {"lt": {-1}, "le": {-1, 0}, "eq": {0}, "ne": {-1, 1}, "ge": {0, 1}, "gt": {1}}


@lru_cache(maxsize=256)
def _beyond(value: Fraction, relation: str) -> Automaton:
    """Numerals whose value stands in this relation to `value`."""
    text = numeral(abs(value))
    whole, _, fraction = text.partition(".")
    negative = value < 0
    results = _RESULTS[relation]

    def result(state: tuple[bool, str, int, int]) -> int:
        """-1, 0 or 1: the numeral read so far against the value."""
        minus, where, count, order = state
        if where == "whole":
            order = _order(count, order, len(whole))
        if order == 0 and len(fraction) > (count if where == "fraction" else 0):
            order = -1
        if minus != negative:
            return -1 if minus else 1
        return -order if minus else order

    def step(state: tuple[bool, str, int, int]) -> Iterable[tuple[int, int, tuple[bool, str, int, int]]]:
        minus, where, count, order = state
        if where == "whole":
            if count == 0 and not minus:
                yield _MINUS, _MINUS, (True, "whole", 0, 0)
            if count:
                yield _POINT, _POINT, (minus, "fraction", 0, _order(count, order, len(whole)))
            past = min(count, len(whole))
            for first, last, after in _digits(order, whole[past] if past < len(whole) else None):
                yield first, last, (minus, "whole", min(count + 1, len(whole) + 1), after)
        else:
            for first, last, after in _digits(order, fraction[count] if count < len(fraction) else "0"):
                yield first, last, (minus, "fraction", min(count + 1, len(fraction)), after)

    return automaton.explore(
        (False, "whole", 0, 0), step, lambda state: (state[1] == "fraction" or state[2] > 0) and result(state) in results
    )


def _order(count: int, order: int, length: int) -> int:
    """Of whole parts of `count` and `length` digits, without leading zeros, whose first digits compare as `order`."""
    return order if count == length else (-1 if count < length else 1)


def _digits(order: int, against: str | None) -> Iterable[tuple[int, int, int]]:
    """Ranges of the next digit with the order that they make. The first difference decides."""
    if order or against is None:
        yield _ZERO, _NINE, order
        return
    at = ord(against)
    if at > _ZERO:
        yield _ZERO, at - 1, -1
    yield at, at, 0
    if at < _NINE:
        yield at + 1, _NINE, 1


@lru_cache(maxsize=64)
def _multiple(divisor: Fraction) -> Automaton:
    """Numerals of multiples: digits are read as one whole number, kept modulo the divisor, both scaled to the same power of ten."""
    text = numeral(divisor)
    places = len(text.partition(".")[2])
    modulus = int(divisor * 10**places)
    if modulus * (places + 2) > MAX_MULTIPLE_STATES:
        raise TooComplexError(f"'multipleOf' {text}")

    def step(state: tuple[int, int]) -> Iterable[tuple[int, int, tuple[int, int]]]:
        rest, place = state  # place -1: before the point
        if place < 0:
            yield _MINUS, _MINUS, state
            yield _POINT, _POINT, (rest, 0)
        if place < places:
            for digit in range(10):
                yield _ZERO + digit, _ZERO + digit, ((rest * 10 + digit) % modulus, place if place < 0 else place + 1)
        else:
            yield _ZERO, _ZERO, state

    def accepts(state: tuple[int, int]) -> bool:
        rest, place = state
        return (rest * int(10 ** (places - max(place, 0)))) % modulus == 0

    return automaton.explore((0, -1), step, accepts)


def forget() -> None:
    """Drop what was kept of earlier bounds and divisors. (The numerals as such are the same for everyone.)"""
    _beyond.cache_clear()
    _multiple.cache_clear()
