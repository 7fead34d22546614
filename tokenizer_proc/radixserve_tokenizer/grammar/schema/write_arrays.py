"""Arrays as grammar rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.schema.errors import TooComplexError, unenforceable
from radixserve_tokenizer.grammar.schema.rules import NEVER, NOTHING, Alt, Rep, Seq, Text
from radixserve_tokenizer.grammar.schema.values import ANYTHING

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.rules import Expr, Ref
    from radixserve_tokenizer.grammar.schema.values import Array, Contains, Goal
    from radixserve_tokenizer.grammar.schema.write import Writer

MAX_STATES = 2000
SEPARATOR = Text('", "')


def array_text(writer: Writer, shape: Array) -> Expr:
    """The texts of an array. Raises `ConstraintError`."""
    high = shape.high
    if shape.is_declared and not shape.rests and shape.low <= len(shape.prefix):
        high = len(shape.prefix) if high is None else min(high, len(shape.prefix))
    if shape.distinct and (high is None or high > 1):
        raise unenforceable("uniqueItems", "unless there is at most one item", min(shape.distinct))
    body = _Counted(writer, shape, high).text() if shape.contains else _plain(writer, shape, high)
    return Seq((Text('"["'), body, Text('"]"')))


def _item_goal(shape: Array, index: int) -> Goal:
    goal = shape.prefix[index] if index < len(shape.prefix) else ANYTHING
    for start, rest in shape.rests:
        if start <= index:
            goal |= rest
    return goal


def _num_special(shape: Array) -> int:
    """From this item on all are alike."""
    starts = [start for start, _ in shape.rests] + [one.start for one in shape.contains]
    return max([len(shape.prefix), *starts])


def _plain(writer: Writer, shape: Array, high: int | None) -> Expr:
    first = _num_special(shape)
    rest = _repeated(writer, shape, first, high)
    for index in reversed(range(first)):
        if high is not None and index >= high:
            rest = NOTHING
            continue
        item = Seq((*((SEPARATOR,) if index else ()), writer.value(_item_goal(shape, index)), rest))
        rest = item if index < shape.low else writer.rules.new(Alt((item, NOTHING)))
    return rest


def _repeated(writer: Writer, shape: Array, first: int, high: int | None) -> Expr:
    """Items from `first` on, all alike."""
    low = max(shape.low - first, 0)
    most = None if high is None else max(high - first, 0)
    item = writer.value(_item_goal(shape, first))
    if first:
        return Rep(Seq((SEPARATOR, item)), low, most)
    if most == 0:
        return NOTHING
    whole = Seq((item, Rep(Seq((SEPARATOR, item)), max(low - 1, 0), None if most is None else most - 1)))
    return whole if low else Rep(whole, 0, 1)


class _Counted:
    """Arrays of which some items are counted: a rule for each (item, counts) that differ in what may follow."""

    def __init__(self, writer: Writer, shape: Array, high: int | None) -> None:
        self._writer = writer
        self._shape = shape
        self._high = high
        self._last = max(_num_special(shape), shape.low, high or 0, 1)  # the first item alone has no comma before it
        self._states: dict[tuple[int, tuple[int, ...]], Ref] = {}

    def text(self) -> Expr:
        """All items. Raises `TooComplexError`."""
        start: tuple[int, tuple[int, ...]] = (0, (0,) * len(self._shape.contains))
        pending: list[tuple[int, tuple[int, ...]]] = [start]
        self._states[start] = self._writer.rules.reserve()
        while pending:
            state = pending.pop()
            self._writer.rules.bodies[self._states[state].name] = self._body(state, pending)
        return self._states[start]

    def _body(self, state: tuple[int, tuple[int, ...]], pending: list[tuple[int, tuple[int, ...]]]) -> Expr:
        index, counts = state
        shape = self._shape
        options: list[Expr] = []
        if self._high is None or index < self._high:
            for goal, after in self._choices(index, counts):
                following = (min(index + 1, self._last) if self._high is None else index + 1, after)
                if following not in self._states:
                    if len(self._states) >= MAX_STATES:
                        raise TooComplexError("counts of items")
                    self._states[following] = self._writer.rules.reserve()
                    pending.append(following)
                separator = (SEPARATOR,) if index else ()
                options.append(Seq((*separator, self._writer.value(goal), self._states[following])))
        enough = all(count >= one.low for count, one in zip(counts, shape.contains, strict=True))
        if enough and index >= shape.low:
            options.append(NOTHING)
        return Alt(tuple(options)) if options else NEVER

    def _choices(self, index: int, counts: tuple[int, ...]) -> list[tuple[Goal, tuple[int, ...]]]:
        """What the next item may be, with the counts after it."""
        found: list[tuple[Goal, tuple[int, ...]]] = [(_item_goal(self._shape, index), ())]
        for one, count in zip(self._shape.contains, counts, strict=True):
            found = [(goal | more, (*after, later)) for goal, after in found for more, later in _counted(one, index, count)]
        return found


def _counted(one: Contains, index: int, count: int) -> list[tuple[Goal, int]]:
    """Whether an item is one of those counted, and the count after it."""
    if index < one.start:
        return [(ANYTHING, count)]
    most = one.low if one.high is None else one.high
    if one.high is None:
        # One more or less doesn't matter, so an item that isn't counted may be anything.
        return [(one.goal, count + 1), (ANYTHING, count)] if count < most else [(ANYTHING, count)]
    found = [(without, count) for without in _without(one.goal)]
    return [(one.goal, count + 1), *found] if count < most else found


def _without(goal: Goal) -> list[Goal]:
    """Not all of a goal: one literal of it does not hold."""
    return [frozenset({(number, not holds)}) for number, holds in sorted(goal)]
