"""The check before compiling: a constraint becomes something that the compiler enforces exactly, or an error."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from radixserve_tokenizer.grammar.coverage import prepare_schema
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.jsonobject import JSON_OBJECT_GRAMMAR
from radixserve_tokenizer.grammar.patterns import output_rule
from radixserve_tokenizer.grammar.regex import RegexError

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Constraint

#: Part of every key: raise it where the same source starts to compile to another grammar.
_FORMAT = "1"
MAX_EBNF_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the worker compiles. Two constraints that mean the same text have the same key."""

    kind: Literal["json_schema", "ebnf"]
    source: str
    key: str


def prepare(constraint: Constraint) -> Prepared:
    """Check a constraint and bring it into the compiler's form; raises `ConstraintError`. Takes milliseconds at most."""
    match constraint.kind:
        case "json_object":
            return _prepared("ebnf", JSON_OBJECT_GRAMMAR)
        case "json_schema":
            return _prepared("json_schema", prepare_schema(constraint.source))
        case "regex":
            try:
                return _prepared("ebnf", f"root ::= {output_rule(constraint.source)}\n")
            except RegexError as error:
                raise ConstraintError(f"regex: {error}") from error
        case "ebnf":
            return _prepared("ebnf", _checked_ebnf(constraint.source))


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


def _prepared(kind: Literal["json_schema", "ebnf"], source: str) -> Prepared:
    digest = hashlib.sha256(f"{_FORMAT}\0{kind}\0{source}".encode()).hexdigest()
    return Prepared(kind=kind, source=source, key=digest[:32])
