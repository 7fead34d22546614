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
from rich.console import Console
from rich.table import Table

from radixserve_runtime.grammar.store import GrammarStore
from radixserve_tokenizer.grammar.compiler import CompileError, Compiler

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
        self._store = GrammarStore(_VOCABULARY, len(_VOCABULARY), [_EOS], capacity=1)
        self._compiler = Compiler(_VOCABULARY, [_EOS])

    def judge(self, schema: Any, tests: list[dict[str, Any]]) -> tuple[str, str]:
        """The verdict on a group, and what explains it."""
        try:
            payload = self._compiler.compile("json_schema" if self._closed else "open_json_schema", json.dumps(schema))
        except CompileError as error:
            return "refused", str(error)
        self._store.put("group", payload)
        wrong = [test for test in tests if any(map(self._matches, texts(test["data"]))) != test["valid"]]
        under = [test for test in wrong if not test["valid"]]
        verdict = "under" if under else "over" if wrong else "exact"
        return verdict, "; ".join(test["description"] for test in under or wrong)

    def _matches(self, text: str) -> bool:
        matcher = self._store.matcher("group")
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(_EOS)


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
