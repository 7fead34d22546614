"""Sets of JSON values: for each type a union of shapes; sets can be joined and met.

What stands inside an array or object is a `Goal`, schemas that have all to hold (or not to hold) there; it is worked out
when it is needed, so schemas may refer to themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.numerals import Numbers, exact
from radixserve_tokenizer.grammar.schema.texts import Texts
from radixserve_tokenizer.grammar.schema.work import spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_SHAPES = 256

#: (number of a schema node, whether it has to hold). All of them have to be as they say; none: anything goes.
Goal: TypeAlias = frozenset[tuple[int, bool]]

ANYTHING: Goal = frozenset()
NOTHING: Goal = frozenset({(-1, True)})
"""No value."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Contains:
    """Of the items from `start` on at least `low` and at most `high` fulfil `goal`."""

    start: int
    goal: Goal
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays that fulfil all of this."""

    prefix: tuple[Goal, ...] = ()
    rests: frozenset[tuple[int, Goal]] = frozenset()
    """(from this item on, what each of them is)."""
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    distinct: frozenset[str] = frozenset()
    """Pointers of the schemas that ask for no two equal items."""
    is_declared: bool = False
    """A schema lists the first items and says nothing of the others."""

    def meet(self, other: Array) -> Array | None:
        """Arrays of both; None where that can't be any."""
        spend(len(self.prefix) + len(other.prefix))
        longer, shorter = sorted((self.prefix, other.prefix), key=len, reverse=True)
        high = _least(self.high, other.high)
        low = max(self.low, other.low)
        if high is not None and low > high:
            return None
        return Array(
            tuple(goal | shorter[index] if index < len(shorter) else goal for index, goal in enumerate(longer)),
            self.rests | other.rests,
            low,
            high,
            tuple(dict.fromkeys(self.contains + other.contains)),
            self.distinct | other.distinct,
            self.is_declared or other.is_declared,
        )


@dataclass(frozen=True, slots=True)
class Cover:
    """Properties with none of these names, and whose names match none of these patterns, fulfil `goal`."""

    names: frozenset[str]
    patterns: frozenset[str]
    goal: Goal


#: A union of sets of property names.
Names: TypeAlias = tuple[Texts, ...]


@dataclass(frozen=True, slots=True)
class Object:
    """Objects that fulfil all of this."""

    properties: tuple[tuple[str, Goal], ...] = ()
    required: tuple[str, ...] = ()
    patterns: frozenset[tuple[str, Goal]] = frozenset()
    covers: frozenset[Cover] = frozenset()
    names: frozenset[Names] = frozenset()
    """Every property's name belongs to each of these."""
    witnesses: frozenset[tuple[Names, Goal]] = frozenset()
    """For each there is a property with such a name and value."""
    low: int = 0
    high: int | None = None
    is_declared: bool = False
    """A schema lists properties and says nothing of others."""

    def meet(self, other: Object) -> Object | None:
        """Objects of both; None where that can't be any."""
        high = _least(self.high, other.high)
        low = max(self.low, other.low)
        if high is not None and low > high:
            return None
        spend(len(self.properties) + len(other.properties))
        goals = dict(self.properties)
        for name, goal in other.properties:
            goals[name] = goals.get(name, ANYTHING) | goal
        required = tuple(dict.fromkeys(self.required + other.required))
        if any(goals.get(name) is not None and goals[name] >= NOTHING for name in required):
            return None
        return Object(
            tuple(goals.items()),
            required,
            self.patterns | other.patterns,
            self.covers | other.covers,
            self.names | other.names,
            self.witnesses | other.witnesses,
            low,
            high,
            self.is_declared or other.is_declared,
        )


@dataclass(frozen=True, slots=True)
class Values:
    """A set of JSON values."""

    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[Numbers, ...] = ()
    strings: tuple[Texts, ...] = ()
    arrays: tuple[Array, ...] = ()
    objects: tuple[Object, ...] = ()

    def join(self, other: Values) -> Values:
        """Values of either. Raises `TooComplexError`."""
        return Values(
            self.null or other.null,
            self.booleans | other.booleans,
            _union(self.numbers + other.numbers),
            _texts(self.strings + other.strings),
            _union(self.arrays + other.arrays),
            _union(self.objects + other.objects),
        )

    def meet(self, other: Values) -> Values:
        """Values of both. Raises `RegexError` and `TooComplexError`."""
        spend(30)
        return Values(
            self.null and other.null,
            self.booleans & other.booleans,
            _cross(self.numbers, other.numbers, lambda one, two: _unless_empty(one.meet(two))),
            _cross(self.strings, other.strings, lambda one, two: _unless_empty(one.meet(two))),
            _cross(self.arrays, other.arrays, lambda one, two: one.meet(two)),
            _cross(self.objects, other.objects, lambda one, two: one.meet(two)),
        )

    @property
    def is_empty(self) -> bool:
        """Certainly no value. An array or object that can't be fulfilled may be overlooked."""
        return self == EMPTY


EMPTY = Values()
ALL = Values(True, frozenset({True, False}), (Numbers(),), (Texts(),), (Array(),), (Object(),))

_FIELD_OF_TYPE = {
    "null": "null",
    "boolean": "booleans",
    "number": "numbers",
    "string": "strings",
    "array": "arrays",
    "object": "objects",
}


def of_type(name: str) -> Values:
    """All values of a JSON type ("integer" is none of these)."""
    field = _FIELD_OF_TYPE[name]
    return Values(**{field: getattr(ALL, field)})


def others(name: str, values: Values) -> Values:
    """These values of one type, and everything of the other types."""
    field = _FIELD_OF_TYPE[name]
    return Values(**{each: getattr(values if each == field else ALL, each) for each in _FIELD_OF_TYPE.values()})


def only(name: str, values: Values) -> Values:
    """What is of one type."""
    field = _FIELD_OF_TYPE[name]
    return Values(**{field: getattr(values, field)})


def _least(one: int | None, two: int | None) -> int | None:
    return two if one is None else one if two is None else min(one, two)


def _unless_empty(shape: T | None) -> T | None:
    return None if shape is None or getattr(shape, "is_empty", False) else shape


def _cross(one: tuple[T, ...], two: tuple[T, ...], meet: Callable[[T, T], T | None]) -> tuple[T, ...]:
    spend(8 * len(one) * len(two))
    return _union(found for left, right in product(one, two) if (found := meet(left, right)) is not None)


def _union(shapes: Iterable[T]) -> tuple[T, ...]:
    kept = tuple(dict.fromkeys(shapes))
    if len(kept) > MAX_SHAPES:
        raise TooComplexError(f"more than {MAX_SHAPES} alternatives")
    return kept


def _texts(shapes: tuple[Texts, ...]) -> tuple[Texts, ...]:
    """Finite sets become one."""
    words = [one.allowed for one in shapes if one.allowed is not None]
    rest = [one for one in shapes if one.allowed is None]
    return _union((Texts(allowed=frozenset[str]().union(*words)), *rest) if words else rest)


TYPE_NAMES = tuple(_FIELD_OF_TYPE)
INTEGERS = Values(numbers=(Numbers(integer=True),))
FRACTIONS = Values(numbers=(Numbers(integer=False),))


def of_scalars(listed: Iterable[Any], *, holds: bool) -> Values:
    """These values (none is an array or object), or all but these."""
    null, booleans, numbers, words = False, set[bool](), set[Any](), set[str]()
    for value in listed:
        match value:
            case None:
                null = True
            case bool():
                booleans.add(value)
            case str():
                words.add(value)
            case _:
                numbers.add(exact(value))
    if holds:
        found = Values(null, frozenset(booleans))
        found = found.join(Values(numbers=(Numbers(allowed=frozenset(numbers)),))) if numbers else found
        return found.join(Values(strings=(Texts(allowed=frozenset(words)),))) if words else found
    return Values(
        not null,
        frozenset({True, False} - booleans),
        (Numbers(excluded=frozenset(numbers)),),
        (Texts(excluded=frozenset(words)),),
        (Array(),),
        (Object(),),
    )
