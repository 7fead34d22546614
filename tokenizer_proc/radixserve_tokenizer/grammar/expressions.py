"""A regular expression that a whole output has to match, as a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.protocol import COUNTS_LINE
from radixserve_tokenizer.grammar.charset import CharSet
from radixserve_tokenizer.grammar.counts import Marks, counted_part, is_long
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.patterns import output_rule, plain, write_expression
from radixserve_tokenizer.grammar.regex import Choice, Node, alternatives, parse
from radixserve_tokenizer.grammar.schema import automaton
from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.work import MAX_STEPS, at_most

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.schema.automaton import Automaton


def expression_grammar(source: str, *, alone: bool) -> str:
    """EBNF text with a rule `root`, and a line of the counts before it if there are any. `alone`: it is all of the output, so that the
    runtime knows where its characters begin. Raises `RegexError` and `ConstraintError`. It may take long: mind the time.
    """
    node = _whole(source)
    if not is_long(node):
        return f"root ::= {output_rule(source)}\n"
    part = counted_part(node) if alone else None
    if part is not None:
        marks = Marks(plain, inside=False)
        text = f"root ::= {marks.text(part, write_expression)}\n"
        return f"{COUNTS_LINE.decode()}{' '.join(map(str, sorted(marks.numbers)))}\n{text}"
    try:
        with at_most(MAX_STEPS):
            return _rules(automaton.of_node(node))
    except TooComplexError as error:
        raise ConstraintError(f"it is too complex to be enforced ({error.what}): simplify it") from error


def _whole(source: str) -> Node:
    options = [content for _, content, _ in alternatives(parse(source))]
    return options[0] if len(options) == 1 else Choice(tuple(options))


def _rules(language: Automaton) -> str:
    """A rule for each state."""
    lines: list[str] = []
    for state, edges in enumerate(language.edges):
        by_target: dict[int, list[tuple[int, int]]] = {}
        for first, last, target in edges:
            by_target.setdefault(target, []).append((first, last))
        options = [f"{plain(CharSet.of(ranges))} {_name(target)}" for target, ranges in by_target.items()]
        options += ['""'] if state in language.accepting else []
        lines.append(f"{_name(state)} ::= {' | '.join(options)}\n")
    return "".join(["root ::= s0\n", *lines])


def _name(state: int) -> str:
    return f"s{state}"
