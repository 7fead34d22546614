"""A set of values as a grammar of JSON texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.charset import CharSet
from radixserve_tokenizer.grammar.patterns import inside_json_string, literal_rule, plain, write_expression
from radixserve_tokenizer.grammar.schema import automaton
from radixserve_tokenizer.grammar.schema.numerals import MAX_FRACTION_DIGITS, MAX_WHOLE_DIGITS
from radixserve_tokenizer.grammar.schema.rules import NEVER, NOTHING, Alt, Ref, Rep, Rules, Seq, Text
from radixserve_tokenizer.grammar.schema.values import ANYTHING, Values
from radixserve_tokenizer.grammar.schema.write_arrays import array_text
from radixserve_tokenizer.grammar.schema.write_objects import object_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.grammar.schema.automaton import Automaton
    from radixserve_tokenizer.grammar.schema.denote import Meaning
    from radixserve_tokenizer.grammar.schema.numerals import Numbers
    from radixserve_tokenizer.grammar.schema.rules import Expr
    from radixserve_tokenizer.grammar.schema.texts import Texts
    from radixserve_tokenizer.grammar.schema.values import Goal

#: An automaton becomes one expression up to this size; a rule for each state beyond it.
_MAX_EXPRESSION = 80
QUOTE = Text('"\\""')
#: So many characters of bounded strings, all different bounds of a schema together, have rules of their own: room and time grow with the square.
MAX_CHAINED = 24
_CHARACTER, _ESCAPE = r'[^"\\\x00-\x1f]', r'"\\" ["\\/bfnrt]'
_STRING = Text(r'"\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt])* "\""')


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
    """Writes the rules of one schema."""

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self.rules = Rules()
        self._of_goal: dict[Goal, Ref] = {}
        self._of_values: dict[Values, Ref] = {}
        """Goals that come down to the same values are written once."""
        self._pending: list[Goal] = []
        self._shared: dict[str, Ref] = {}
        self._chain_room = MAX_CHAINED

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
        options: list[Expr] = []
        if found.strings:
            options += map(self.string, found.strings)
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
        text, number = self._once("string", _STRING), self._once("number", _NUMBER)
        member = Seq((text, Text('": "'), value))
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

    # ---- strings and numbers ----------------------------------------------------------------------------------------

    def string(self, texts: Texts) -> Expr:
        """A JSON string. Raises `TooComplexError`."""
        if texts.allowed is not None:
            words = [json.dumps(word, ensure_ascii=False) for word in sorted(texts.allowed)]
            return Alt(tuple(Text(literal_rule(word)) for word in words))
        if not texts.excluded and not texts.patterns and not texts.low and texts.high is None:
            return self._once("string", _STRING)
        if not texts.excluded and not texts.patterns and texts.high is not None:
            name = f"string_{texts.low}_{texts.high}"
            if name in self._shared or texts.high <= self._chain_room:
                return Seq((QUOTE, self._chain(name, texts.low, texts.high)))
        node = texts.node()
        if node is not None:
            return Seq((QUOTE, Text(f"({write_expression(node, inside_json_string)})"), QUOTE))
        return self.quoted(texts.automaton())

    def _chain(self, name: str, low: int, high: int) -> Expr:
        """So many characters and the quote at the end: a rule for each number of them.

        A repetition would be shorter, but where it may end the compiler can't know beforehand which tokens fit: a mask would take 20 ms.
        """
        if name in self._shared:
            return self._shared[name]
        self._chain_room -= high
        following: Expr = QUOTE
        for count in reversed(range(high)):
            options = (Seq((Text(_CHARACTER), following)), Seq((Text(_ESCAPE), following)))
            body = Alt((*options, QUOTE) if count >= low else options)
            following = self._once(name if count == 0 else f"{name}_{count}", body)
        return following

    def quoted(self, language: Automaton) -> Expr:
        """A JSON string of a language."""
        return Seq((QUOTE, self._language(language, inside_json_string), QUOTE))

    def _number(self, numbers: Numbers) -> Expr:
        if numbers.is_free:
            return self._once("number", _NUMBER)
        if numbers.is_plain_integer and not self.meaning.open_numbers:
            return self._once("integer", _INTEGER)
        return self._language(numbers.automaton(open_form=self.meaning.open_numbers), plain)

    def _language(self, language: Automaton, write_set: Callable[[CharSet], str]) -> Expr:
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
