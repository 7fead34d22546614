"""From a JSON Schema to the grammar of its values."""

from __future__ import annotations

from typing import Any

from radixserve_runtime.protocol import COUNTS_LINE
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.regex import RegexError
from radixserve_tokenizer.grammar.schema import numerals, texts
from radixserve_tokenizer.grammar.schema.denote import Meaning
from radixserve_tokenizer.grammar.schema.documents import Document
from radixserve_tokenizer.grammar.schema.errors import TooComplexError
from radixserve_tokenizer.grammar.schema.values import ANYTHING
from radixserve_tokenizer.grammar.schema.work import MAX_STEPS, at_most
from radixserve_tokenizer.grammar.schema.write import Writer
from radixserve_tokenizer.grammar.values import count

TEXT_LIMIT = "x-max-text"
"""A keyword of ours at a schema's root: strings that nothing bounds (no `maxLength`, `pattern`, `format`, `enum`) have at most so many
characters. For small models, which may never end one."""
MAX_TEXT = 512 << 10
"""Characters of a grammar. The compiler takes seconds and hundreds of MB for some half of it."""


def schema_grammar(schema: Any, *, closed: bool = True) -> str:
    """EBNF text with a rule `root`, and a line of the counts before it if there are any (`COUNTS_LINE`): JSON texts (spaced as Python's json spaces them) of values for which the schema holds.

    `closed`: see `Meaning`. With `closed` False the texts are those of all such values, as long as numbers take no more than
    18 digits before the point and 17 after it. Raises `ConstraintError`. It may take long: mind the time.
    """
    if schema is False:
        raise ConstraintError("the schema 'false' allows no value", "")
    document = Document(schema)
    meaning = Meaning(document, closed=closed)
    goal = ANYTHING if schema is True else frozenset({(document.root, True)})
    try:
        with at_most(MAX_STEPS):
            limit = count(schema[TEXT_LIMIT], TEXT_LIMIT, "") if isinstance(schema, dict) and TEXT_LIMIT in schema else None
            writer = Writer(meaning, limit=limit)
            text = writer.grammar(goal)
            counts = writer.strings.counts
            if counts:
                text = Writer(meaning, counts, shares=writer.shares, limit=limit).grammar(goal)
    except RecursionError as error:
        raise TooComplexError("it is nested too deep") from error
    except RegexError as error:
        raise ConstraintError(f"keyword 'pattern' can't be enforced: {error}", "") from error
    if text is not None and len(text) > MAX_TEXT:
        raise TooComplexError(f"its grammar has {len(text)} characters, more than {MAX_TEXT}")
    if text is None:
        raise ConstraintError("it allows no value", "")
    return f"{COUNTS_LINE.decode()}{' '.join(map(str, sorted(counts)))}\n{text}" if counts else text


def forget() -> None:
    """Drop what earlier schemas have left: with it a schema that shares a part with one of them would be quicker."""
    texts.forget()
    numerals.forget()
