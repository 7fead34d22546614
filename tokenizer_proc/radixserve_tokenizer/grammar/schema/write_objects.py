"""Objects as grammar rules: declared properties in their order, then others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.schema import automaton
from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.rules import NEVER, NOTHING, Alt, Rep, Seq, Text
from radixserve_tokenizer.grammar.schema.texts import Texts, pattern_automaton
from radixserve_tokenizer.grammar.schema.values import ANYTHING
from radixserve_tokenizer.grammar.schema.values import NOTHING as NO_VALUE
from radixserve_tokenizer.grammar.schema.work import spend

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.automaton import Automaton
    from radixserve_tokenizer.grammar.schema.rules import Expr, Ref
    from radixserve_tokenizer.grammar.schema.values import Goal, Names, Object
    from radixserve_tokenizer.grammar.schema.write import Writer

MAX_STATES = 4000
MAX_PATTERNS = 5
SEPARATOR = Text('", "')


def object_text(writer: Writer, shape: Object) -> Expr:
    """The texts of an object. Raises `ConstraintError`."""
    options = [_Members(writer, *choice).text() for choice in _placed(shape)]
    body = options[0] if len(options) == 1 else Alt(tuple(options))
    return Seq((Text('"{"'), body, Text('"}"')))


def _placed(shape: Object) -> list[tuple[Object, tuple[tuple[Names, Goal], ...]]]:
    """Every way in which declared properties, or else others, are the ones that have to be there (`witnesses`)."""
    places: list[list[str | None]] = []
    witnesses = sorted(shape.witnesses, key=repr)
    declared = _declared(shape)
    for names, _ in witnesses:
        places.append([name for name in declared if any(one.has(name) for one in names)] + [None])
    found: list[tuple[Object, tuple[tuple[Names, Goal], ...]]] = []
    for choice in product(*places):
        one = replace(shape, witnesses=frozenset())
        for name, (_, goal) in zip(choice, witnesses, strict=True):
            if name is not None:
                goals = dict(one.properties)
                goals[name] = goals.get(name, ANYTHING) | goal
                one = replace(one, properties=tuple(goals.items()), required=tuple(dict.fromkeys((*one.required, name))))
        found.append((one, tuple(witness for name, witness in zip(choice, witnesses, strict=True) if name is None)))
        if len(found) > 64:
            raise TooComplexError("too many ways in which a property can be there")
    return found


def _declared(shape: Object) -> list[str]:
    return list(dict.fromkeys([*(name for name, _ in shape.properties), *shape.required]))


@dataclass(frozen=True, slots=True)
class _State:
    """Before the declared property `index` (or after the last): what matters for the rest."""

    index: int
    started: bool
    count: int
    """Properties so far, up to where it matters for `maxProperties`."""
    sure: int
    """Properties so far with different names, up to where it matters for `minProperties`."""
    has_other: bool
    owed: frozenset[int]
    """Witnesses that are still to come."""


class _Members:
    """What stands between the braces."""

    def __init__(self, writer: Writer, shape: Object, witnesses: tuple[tuple[Names, Goal], ...]) -> None:
        self._writer = writer
        self._shape = shape
        self._names = _declared(shape)
        self._goals = [self._goal(name) for name in self._names]
        self._required = [name in shape.required for name in self._names]
        self._classes = _classes(shape, self._names)
        self._others = self._member(None, ANYTHING)
        self._witnesses = [self._member(names, goal) for names, goal in witnesses]
        self._counts_low = shape.low > sum(self._required)
        self._states: dict[_State, Expr] = {}
        self._tails: dict[bool, Expr] = {}

    def text(self) -> Expr:
        """All members. Raises `TooComplexError`."""
        owed = frozenset(range(len(self._witnesses)))
        if not self._counts_low and self._shape.high is None:
            # From the last to the first, so that no state waits for a long row of others.
            for index in reversed(range(len(self._names))):
                for started in (False, True):
                    self._state(_State(index, started, 0, 0, False, owed))
        return self._state(_State(0, False, 0, 0, False, owed))

    def _goal(self, name: str) -> Goal:
        """What the value of a declared property is."""
        shape = self._shape
        goal = dict(shape.properties).get(name, ANYTHING)
        for pattern, more in shape.patterns:
            if pattern_automaton(pattern).accepts(name):
                goal |= more
        for cover in shape.covers:
            if name not in cover.names and not any(pattern_automaton(pattern).accepts(name) for pattern in cover.patterns):
                goal |= cover.goal
        allowed = all(any(one.has(name) for one in names) for names in shape.names)
        return goal if allowed else NO_VALUE

    def _member(self, names: Names | None, more: Goal) -> Expr:
        """A property that isn't declared; of these names, with a value that fulfils this, too."""
        options: list[Expr] = []
        for language, goal in self._classes:
            kept = language
            if names is not None:
                kept = _language(names) if language is None else language & _language(names)
            if kept is None or not kept.is_empty:
                # No language: any name at all.
                text = self._writer.strings.key(kept)
                options.append(Seq((text, Text('": "'), self._writer.value(goal | more))))
        # A rule of its own: it stands in several places.
        return self._writer.rules.new(Alt(tuple(options))) if options else NEVER

    def _state(self, state: _State) -> Expr:
        found = self._states.get(state)
        if found is not None:
            return found
        if len(self._states) >= MAX_STATES:
            raise TooComplexError("counts of properties")
        spend(40)
        loops = state.index == len(self._names)
        own: Ref | None = None
        if loops:
            if self._is_simple(state):
                found = self._states[state] = self._tail(state.started)
                return found
            own = self._writer.rules.reserve()
            self._states[state] = own
        options = self._others_after(state) if loops else self._declared_after(state)
        if own is not None:
            self._writer.rules.bodies[own.name] = Alt(tuple(options))
            return own
        found = options[0] if len(options) == 1 else self._writer.rules.new(Alt(tuple(options)))
        self._states[state] = found
        return found

    def _declared_after(self, state: _State) -> list[Expr]:
        index = state.index
        options: list[Expr] = []
        if self._goals[index] != NO_VALUE and self._has_room(state):
            key = self._writer.strings.declared_key(self._names[index])
            after = self._counted(replace(state, index=index + 1, started=True))
            options.append(Seq((*self._separator(state), key, self._writer.value(self._goals[index]), self._state(after))))
        if not self._required[index]:
            options.append(self._state(replace(state, index=index + 1)))
        return options or [NEVER]

    def _others_after(self, state: _State) -> list[Expr]:
        options: list[Expr] = []
        if self._has_room(state):
            after = self._counted(replace(state, started=True, has_other=True), is_sure=not state.has_other)
            members = [(self._others, after)]
            members += [(self._witnesses[owed], replace(after, owed=state.owed - {owed})) for owed in sorted(state.owed)]
            options += [
                Seq((*self._separator(state), member, self._state(following))) for member, following in members if member != NEVER
            ]
        if not state.owed and (not self._counts_low or state.sure >= self._shape.low):
            options.append(NOTHING)
        return options or [NEVER]

    def _is_simple(self, state: _State) -> bool:
        return not state.owed and self._shape.high is None and (not self._counts_low or state.sure >= self._shape.low)

    def _tail(self, started: bool) -> Expr:
        """Any number of others."""
        if self._others == NEVER:
            return NOTHING
        if started not in self._tails:
            more = Rep(Seq((SEPARATOR, self._others)))
            self._tails[started] = self._writer.rules.new(more if started else Rep(Seq((self._others, more)), 0, 1))
        return self._tails[started]

    def _has_room(self, state: _State) -> bool:
        return self._shape.high is None or state.count < self._shape.high

    def _counted(self, state: _State, *, is_sure: bool = True) -> _State:
        count = state.count + 1 if self._shape.high is not None else 0
        sure = min(state.sure + is_sure, self._shape.low) if self._counts_low else 0
        return replace(state, count=count, sure=sure, has_other=state.has_other and self._counts_low)

    @staticmethod
    def _separator(state: _State) -> tuple[Expr, ...]:
        return (SEPARATOR,) if state.started else ()


def _classes(shape: Object, declared: list[str]) -> list[tuple[Automaton | None, Goal]]:
    """Names that aren't declared, by the patterns that they match, with what their values are. None: every name."""
    patterns = sorted({pattern for pattern, _ in shape.patterns}.union(*(cover.patterns for cover in shape.covers)))
    if len(patterns) > MAX_PATTERNS:
        raise TooComplexError(f"more than {MAX_PATTERNS} patterns of property names")
    found: list[tuple[Automaton | None, Goal]] = []
    for matched in product((True, False), repeat=len(patterns)):
        matching = {pattern for pattern, matches in zip(patterns, matched, strict=True) if matches}
        goal = ANYTHING.union(*(more for pattern, more in shape.patterns if pattern in matching))
        covers = [cover for cover in shape.covers if not cover.patterns & matching]
        goal = goal.union(*(cover.goal for cover in covers))
        spoken_of = covers or any(pattern in matching for pattern, _ in shape.patterns)
        if goal >= NO_VALUE or (shape.is_declared and not spoken_of):
            continue
        if not patterns and not declared and not shape.names:
            return [(None, goal)]
        language = Texts(
            patterns=frozenset((pattern, pattern in matching) for pattern in patterns), excluded=frozenset(declared)
        ).automaton()
        for names in shape.names:
            language &= _language(names)
        if not language.is_empty:
            found.append((language, goal))
    return found


def _language(names: Names) -> Automaton:
    found = automaton.NOTHING
    for one in names:
        found = one.automaton() if found.is_empty else found | one.automaton()
    return found
