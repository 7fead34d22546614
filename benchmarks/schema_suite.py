"""How faithfully JSON Schemas are enforced, over the groups of a JSON-Schema-Test-Suite folder.

    python benchmarks/schema_suite.py FOLDER

A group is one schema with instances that are valid or not. It is *refused* (an error before anything is generated),
*exact* (accepts every valid instance and no other), *over* (some valid instance can't be written) or *under* (an
invalid one can: this must not happen). An instance can be written if the grammar accepts it with its properties in
any order, spaced as Python's json spaces it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import xgrammar
from rich.console import Console
from rich.table import Table

from radixserve_tokenizer.grammar.compiler import CompileError, Compiler
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.schema.compile import schema_grammar

if TYPE_CHECKING:
    from collections.abc import Iterator

_EOS = 256
_VOCABULARY = [bytes([byte]) for byte in range(256)] + [b""]
#: Orders of properties that are tried for one instance.
_MAX_ORDERS = 720


def texts(instance: Any) -> Iterator[str]:
    """The instance as JSON, in every order of its properties (up to a bound)."""
    for ordered in itertools.islice(_orders(instance), _MAX_ORDERS):
        yield json.dumps(ordered, ensure_ascii=False)


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for members in itertools.product(*(list(itertools.islice(_orders(value[name]), 24)) for name in names)):
                yield dict(zip(names, members, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(itertools.islice(_orders(item), 24)) for item in value)))
    else:
        yield value


class Suite:
    """Judges groups with one compiler."""

    def __init__(self, *, closed: bool) -> None:
        self._closed = closed
        self._info = xgrammar.TokenizerInfo(
            _VOCABULARY, xgrammar.VocabType.RAW, vocab_size=len(_VOCABULARY), stop_token_ids=[_EOS]
        )
        self._compiler = Compiler(_VOCABULARY, [_EOS])

    def judge(self, schema: Any, tests: list[dict[str, Any]]) -> tuple[str, str]:
        """The verdict on a group, and what explains it."""
        try:
            payload = self._compiler.compile("ebnf", schema_grammar(schema, closed=self._closed))
        except (ConstraintError, CompileError) as error:
            return "refused", str(error)
        grammar = xgrammar.CompiledGrammar.deserialize_json(payload.decode(), self._info)
        wrong = [test for test in tests if self._accepts(grammar, test["data"]) != test["valid"]]
        under = [test for test in wrong if not test["valid"]]
        verdict = "under" if under else "over" if wrong else "exact"
        return verdict, "; ".join(test["description"] for test in under or wrong)

    @staticmethod
    def _accepts(grammar: xgrammar.CompiledGrammar, instance: Any) -> bool:
        return any(_matches(grammar, text) for text in texts(instance))


def _matches(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text.encode()) and matcher.accept_token(_EOS)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--show", multiple=True, type=click.Choice(["exact", "over", "under", "refused"]), help="List these groups with the reason."
)
@click.option("--open", "open_", is_flag=True, help="As the schema says, not the narrower reading that is the default.")
def main(folder: Path, show: tuple[str, ...], open_: bool) -> None:
    """Judge every group of FOLDER's *.json files."""
    suite, console = Suite(closed=not open_), Console(width=200)
    by_file: dict[str, Counter[str]] = {}
    for path in sorted(folder.glob("*.json")):
        counts = by_file.setdefault(path.stem, Counter())
        for group in json.loads(path.read_text(encoding="utf-8")):
            verdict, reason = suite.judge(group["schema"], group["tests"])
            counts[verdict] += 1
            if verdict in show or verdict == "under":
                console.print(f"{verdict:8} {path.stem}: {group['description']}: {reason}", markup=False, highlight=False)
    verdicts = ("exact", "over", "refused", "under")
    table = Table("file", *verdicts)
    total: Counter[str] = sum(by_file.values(), Counter())
    for name, counts in [*by_file.items(), ("all", total)]:
        table.add_row(name, *(str(counts[verdict]) for verdict in verdicts))
    console.print(table)
    sys.exit(1 if total["under"] else 0)


if __name__ == "__main__":
    main()
