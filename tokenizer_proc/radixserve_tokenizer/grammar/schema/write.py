"""A set of values as a grammar of JSON texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.charset import CharSet
from radixserve_tokenizer.grammar.patterns import literal_rule, plain, write_expression
from radixserve_tokenizer.grammar.schema import automaton
from radixserve_tokenizer.grammar.schema.numerals import MAX_FRACTION_DIGITS, MAX_WHOLE_DIGITS
from radixserve_tokenizer.grammar.schema.rules import NEVER, NOTHING, Alt, Ref, Rep, Rules, Seq, Text
from radixserve_tokenizer.grammar.schema.texts import Texts
from radixserve_tokenizer.grammar.schema.values import ANYTHING, Values
from radixserve_tokenizer.grammar.schema.write_arrays import array_text
from radixserve_tokenizer.grammar.schema.write_objects import object_text
from radixserve_tokenizer.grammar.schema.write_strings import Strings

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.grammar.schema.automaton import Automaton
    from radixserve_tokenizer.grammar.schema.denote import Meaning
    from radixserve_tokenizer.grammar.schema.numerals import Numbers
    from radixserve_tokenizer.grammar.schema.rules import Expr
    from radixserve_tokenizer.grammar.schema.values import Goal

#: An automaton becomes one expression up to this size; a rule for each state beyond it.
_MAX_EXPRESSION = 80


def _digits(low: int, high: int) -> str:
    """So many digits: a sequence for each number of them, as the compiler makes a rule of its own for each step of {low,high}."""
    runs = (" ".join(["[0-9]"] * count) or '""' for count in range(low, high + 1))
    return f"({' | '.join(runs)})"


_INTEGER = Text(f'("0" | "-"? [1-9] {_digits(0, MAX_WHOLE_DIGITS - 1)})')
_NUMBER = Text(
    f'"-"? ("0" | [1-9] {_digits(0, MAX_WHOLE_DIGITS - 1)}) ("" | "." {_digits(1, MAX_FRACTION_DIGITS)}) '
    f'("" | [eE] ("" | [+-]) {_digits(1, 3)})'
)


class Writer:
    """Writes the rules of one schema. `counts`, `shares` and `limit`: see `Strings`."""

    def __init__(
        self, meaning: Meaning, counts: frozenset[int] = frozenset(), *, shares: bool = False, limit: int | None = None
    ) -> None:
        self.meaning = meaning
        self.rules = Rules()
        self._of_goal: dict[Goal, Ref] = {}
        self._of_values: dict[Values, Ref] = {}
        """Goals that come down to the same values are written once."""
        self._pending: list[Goal] = []
        self._shared: dict[str, Ref] = {}
        self.strings = Strings(self._once, self.language, counts, shares=shares, limit=limit)
        self.shares = False
        """Whether strings that are written differently may stand at one place."""

    def grammar(self, goal: Goal) -> str | None:
        """EBNF text with a rule `root`; None if no value fulfils the goal."""
        root = self.rules.reserve()
        start = self.value(goal)
        while self._pending:
            wanted = self._pending.pop()
            found = self.meaning.values(wanted)
            own = self._of_goal[wanted]
            same = self._of_values.setdefault(found, own)
            self.rules.bodies[own.name] = self._body(found) if same is own else same
        self.rules.bodies[root.name] = start
        return self.rules.text(root)

    def value(self, goal: Goal) -> Expr:
        """What is written for a value that fulfils a goal."""
        if goal == ANYTHING:
            return self._anything()
        found = self._of_goal.get(goal)
        if found is None:
            found = self._of_goal[goal] = self.rules.reserve()
            self._pending.append(goal)
        return found

    def _body(self, found: Values) -> Expr:
        unions = (found.strings, found.objects, found.arrays)
        self.shares |= any(len(one) > 1 for one in unions) or any(shape.contains for shape in found.arrays)
        self.shares |= any(shape.witnesses for shape in found.objects)
        options: list[Expr] = []
        options += map(self.strings.value, found.strings)
        options += map(self._number, found.numbers)
        options += [Text(literal_rule(json.dumps(value))) for value in (True, False) if value in found.booleans]
        if found.null:
            options.append(Text('"null"'))
        options += [array_text(self, shape) for shape in found.arrays]
        options += [object_text(self, shape) for shape in found.objects]
        return options[0] if len(options) == 1 else Alt(tuple(options))

    # ---- what every schema may need ---------------------------------------------------------------------------------

    def _once(self, name: str, body: Expr) -> Ref:
        """A rule that is the same in every schema: grammars that hold several schemas write it once (composite.py)."""
        if name not in self._shared:
            self._shared[name] = self.rules.new(body, f"basic_{name}")
        return self._shared[name]

    def _anything(self) -> Ref:
        if "any" in self._shared:
            return self._shared["any"]
        value = self._once("any", NEVER)
        text, number = self.strings.value(Texts()), self._once("number", _NUMBER)
        member = Seq((self.strings.key(None), Text('": "'), value))
        sep = Text('", "')
        listed = Rep(Seq((value, Rep(Seq((sep, value))))), 0, 1)
        named = Rep(Seq((member, Rep(Seq((sep, member))))), 0, 1)
        self.rules.bodies[value.name] = Alt(
            (
                text,
                number,
                *(Text(f'"{word}"') for word in ("true", "false", "null")),
                Seq((Text('"["'), listed, Text('"]"'))),
                Seq((Text('"{"'), named, Text('"}"'))),
            )
        )
        return value

    # ---- numbers and languages --------------------------------------------------------------------------------------

    def _number(self, numbers: Numbers) -> Expr:
        if numbers.is_free:
            return self._once("number", _NUMBER)
        if numbers.is_plain_integer and not self.meaning.open_numbers:
            return self._once("integer", _INTEGER)
        return self.language(numbers.automaton(open_form=self.meaning.open_numbers), plain)

    def language(self, language: Automaton, write_set: Callable[[CharSet], str]) -> Expr:
        """The words of an automaton, each character written by `write_set`."""
        if language.is_empty:
            return NEVER
        node = automaton.to_node(language, _MAX_EXPRESSION)
        if node is not None:
            return Text(f"({write_expression(node, write_set)})")
        states = [self.rules.reserve() for _ in language.edges]
        for state, edges in enumerate(language.edges):
            by_target: dict[int, list[tuple[int, int]]] = {}
            for first, last, target in edges:
                by_target.setdefault(target, []).append((first, last))
            options: list[Expr] = [
                Seq((Text(write_set(CharSet.of(ranges))), states[target])) for target, ranges in by_target.items()
            ]
            if state in language.accepting:
                options.append(NOTHING)
            self.rules.bodies[states[state].name] = Alt(tuple(options))
        return states[0]
