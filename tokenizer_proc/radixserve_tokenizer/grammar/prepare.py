"""The check before compiling: a constraint becomes something that the compiler enforces exactly, or an error.

What takes long, as working out what a schema means, is left to the compiler's process, which has limits of time and memory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from radixserve_tokenizer.grammar.composite import Composite
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.jsonobject import JSON_OBJECT_GRAMMAR
from radixserve_tokenizer.grammar.patterns import literal_rule
from radixserve_tokenizer.grammar.regex import RegexError, alternatives, parse
from radixserve_tokenizer.grammar.schema.source import parse_schema
from radixserve_tokenizer.grammar.structural import structural_composite

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Constraint

PreparedKind: TypeAlias = Literal["json_schema", "open_json_schema", "regex", "ebnf", "composite"]

#: Part of every key: raise it where the same source starts to compile to another grammar.
_FORMAT = "3"
MAX_EBNF_BYTES = 128 << 10
#: Of all choices together, in UTF-8. Compiled, a byte takes up to 192: what is larger than this may be too large for the runtime.
MAX_CHOICES_BYTES = 40 << 10
#: No list within that limit is longer as JSON: a byte takes at most `"\\u0061",` there.
_MAX_JSON_OF_CHOICES = 10 * MAX_CHOICES_BYTES


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the worker compiles. Two constraints that mean the same text have the same key."""

    kind: PreparedKind
    source: str
    key: str


def prepare(constraint: Constraint | Composite) -> Prepared:
    """Check a constraint and bring it into the compiler's form; raises `ConstraintError`. Takes milliseconds at most."""
    if isinstance(constraint, Composite):
        return _prepared("composite", constraint.source)
    match constraint.kind:
        case "json_object":
            return _prepared("ebnf", JSON_OBJECT_GRAMMAR)
        case "json_schema" | "open_json_schema":
            schema = parse_schema(constraint.source)
            return _prepared(constraint.kind, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
        case "regex":
            try:
                alternatives(parse(constraint.source))
                constraint.source.encode()
            except (RegexError, UnicodeEncodeError) as error:
                raise ConstraintError(f"regex: {error}") from error
            return _prepared("regex", constraint.source)
        case "structural_tag":
            return _prepared("composite", structural_composite(constraint.source, prepare).source)
        case "choice":
            return _prepared("ebnf", f"root ::= {' | '.join(map(literal_rule, _choices(constraint.source)))}\n")
        case "ebnf":
            return _prepared("ebnf", _checked_ebnf(constraint.source))


def _choices(source: str) -> list[str]:
    """The texts of a JSON list, each once and in one order, whatever theirs was."""
    found = _texts(source)
    if not found:
        raise ConstraintError("choice: it must be a JSON list of texts that are not empty")
    if sum(len(text.encode()) for text in found) > MAX_CHOICES_BYTES:
        raise _too_many_choices()
    return sorted(set(found))


def _texts(source: str) -> list[str]:
    if len(source) > _MAX_JSON_OF_CHOICES:
        raise _too_many_choices()
    try:
        found: Any = json.loads(source)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConstraintError("choice: a text has a lone surrogate, which is no character") from error
    except (ValueError, RecursionError) as error:
        raise ConstraintError("choice: it is not valid JSON") from error
    return found if isinstance(found, list) and all(isinstance(text, str) and text for text in found) else []


def _too_many_choices() -> ConstraintError:
    return ConstraintError(f"choice: the choices together are larger than {MAX_CHOICES_BYTES} bytes")


def _checked_ebnf(source: str) -> str:
    if not source.strip():
        raise ConstraintError("ebnf: the grammar is empty")
    try:
        size = len(source.encode())
    except UnicodeEncodeError as error:
        raise ConstraintError("ebnf: the grammar has a lone surrogate, which is no character") from error
    if size > MAX_EBNF_BYTES:
        raise ConstraintError(f"ebnf: the grammar is larger than {MAX_EBNF_BYTES} bytes")
    if "\0" in source:
        raise ConstraintError("ebnf: the grammar has a NUL character")
    return source


def _prepared(kind: PreparedKind, source: str) -> Prepared:
    digest = hashlib.sha256(f"{_FORMAT}\0{kind}\0{source}".encode()).hexdigest()
    return Prepared(kind=kind, source=source, key=digest[:32])
