"""xgrammar behind one function. Only the worker process imports it."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from radixserve_tokenizer.grammar.composite import join

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

#: In the text of a converted schema: strings may have \uXXXX escapes, so also lone surrogates and disguised names ...
_UNICODE_ESCAPE = ' | ("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9])'
#: ... and strings of bounded length may have raw control characters (which is not JSON) but no escapes.
_BOUNDED_CHARACTER = re.compile(r'^(\S+ ::= )\(\(\[\^\\"\\\\\\r\\n\]\)\)$', re.MULTILINE)
_JSON_CHARACTER = r"""\1(([^\\0-\\x1f\\"\\\\]) | ("\\\\" basic_escape))"""
#: xgrammar prints U+00F6 as \xf6, and reads as many hexadecimal digits as follow: "Sj\xf6fart" would be another word.
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)", re.DOTALL)
#: A literal or a class in a grammar's text. Classes that say what is not allowed let surrogates through: no UTF-8.
_LITERAL_OR_CLASS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', re.DOTALL)
_MARK = re.compile(r'^(\S+) ::= Regex\("\^\[q\]pattern(\d+)\$", json_string=true\)$', re.MULTILINE)
MAX_PAYLOAD_BYTES = 8 << 20
MAX_RECOMPILE_S = 0.25
"""What took longer here is not compiled again in the runtime, where it would hold up a step."""


class CompileError(ValueError):
    """The grammar can't be compiled; the text is for the user."""


class OutOfMemoryError(CompileError):
    """Compiling it ran into the memory limit. What the process still holds is unknown: it had better end."""


class Compiler:
    """Compiles for one vocabulary (b"" for control tokens)."""

    def __init__(self, vocabulary: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        info = xgrammar.TokenizerInfo(
            list(vocabulary), xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=sorted(eos_token_ids)
        )
        # What is worth keeping is kept by the caller, in its serialised form.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, kind: str, source: str) -> bytes:
        """What the runtime loads: xgrammar's serialised form of a prepared constraint, or the text of its grammar, which was
        compiled here to see that it can be, and quickly. Raises `CompileError`.

        What the compiler only warns about on standard error, it doesn't enforce: a warning is an error here.
        """
        with _standard_error() as warnings:
            try:
                payload = self._payload(kind, source)
            except (RuntimeError, ValueError, MemoryError) as error:
                if isinstance(error, MemoryError) or "bad_alloc" in str(error):
                    raise OutOfMemoryError("compiling it takes too much memory: simplify it") from error
                raise CompileError(_message(error)) from error
            ignored = [line for line in warnings() if "Warning" in line]
        if ignored:
            raise CompileError(_strip(ignored[0]))
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise CompileError(f"the compiled grammar takes {len(payload)} bytes, more than {MAX_PAYLOAD_BYTES}: simplify it")
        return payload

    def _payload(self, kind: str, source: str) -> bytes:
        text = correct_text(self._text(kind, source))
        started_s = time.monotonic()
        compiled: Any = self._compiler.compile_grammar(self._xgrammar.Grammar.from_ebnf(text))
        # The serialised form holds the whole automaton once for each rule: of twenty tools it would be 40 MB, which take ten
        # times as long to load as the text takes to compile.
        if kind == "composite" and time.monotonic() - started_s <= MAX_RECOMPILE_S:
            return text.encode()
        return str(compiled.serialize_json()).encode()

    def _text(self, kind: str, source: str) -> str:
        """A prepared constraint as the text of a grammar."""
        match kind:
            case "json_schema":
                prepared = json.loads(source)
                schema = json.dumps(prepared["schema"], ensure_ascii=False)
                # One way of white space, as Python's json writes it: a model can't wander off into blanks.
                grammar = self._xgrammar.Grammar.from_json_schema(
                    schema, any_whitespace=False, separators=(", ", ": "), strict_mode=True
                )
                return insert_rules(tighten_strings(str(grammar)), prepared["rules"])
            case "ebnf":
                return str(self._xgrammar.Grammar.from_ebnf(source))
            case "composite":
                whole = json.loads(source)
                return join(whole["text"], [self._part(part) for part in whole["parts"]])
            case _:
                raise CompileError(f"unknown kind of constraint {kind!r}")

    def _part(self, part: dict[str, str]) -> tuple[str, bool]:
        """A part's text, and whether it is a converted schema. Raises `CompileError` naming the part."""
        try:
            return self._text(part["kind"], part["source"]), part["kind"] == "json_schema"
        except (RuntimeError, ValueError) as error:
            raise CompileError(f"{part['label']}: {_message(error)}") from error


def tighten_strings(grammar: str) -> str:
    r"""Correct the string rules of a converted schema: no \uXXXX escapes, no raw control characters, short escapes everywhere.

    Works on the grammar's text, line by line, so that nothing that a schema contains can look like a rule. Raises
    `CompileError` where the text is not what it is known to be (another version of the compiler).
    """
    lines = grammar.split("\n")
    escapes = [index for index, line in enumerate(lines) if line.startswith("basic_escape ::= ")]
    if len(escapes) != 1 or _UNICODE_ESCAPE not in lines[escapes[0]]:
        raise CompileError("this version of xgrammar writes strings in an unknown way; use one that the project admits")
    lines[escapes[0]] = lines[escapes[0]].replace(_UNICODE_ESCAPE, "")
    return _BOUNDED_CHARACTER.sub(_JSON_CHARACTER, "\n".join(lines))


def correct_text(grammar: str) -> str:
    """A grammar's text such that reading it gives the grammar that was printed, and that no class has surrogates in it."""
    grammar = _ESCAPE.sub(lambda found: rf"\u00{found[1]}" if found[1] else found[0], grammar)
    return _LITERAL_OR_CLASS.sub(
        lambda found: rf"[^\ud800-\udfff{found[0][2:]}" if found[0].startswith("[^") else found[0], grammar
    )


def insert_rules(grammar: str, rules: Sequence[str]) -> str:
    """Put the rules of a prepared schema (coverage.py) in the place of their marks. Raises `CompileError` where one has none."""
    used: set[int] = set()

    def body(found: re.Match[str]) -> str:
        used.add(int(found[2]))
        return f"{found[1]} ::= {rules[int(found[2])]}"

    text = _MARK.sub(body, grammar)
    if len(used) != len(rules):
        raise CompileError("this version of xgrammar writes patterns in an unknown way; use one that the project admits")
    return text


@contextmanager
def _standard_error() -> Generator[Callable[[], list[str]], None, None]:
    """File descriptor 2 goes to a file; yields a function that reads the lines so far."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:

            def lines() -> list[str]:
                file.seek(0)
                return file.read().decode(errors="replace").splitlines()

            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _message(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return _strip(lines[0]) if lines else type(error).__name__


def _strip(line: str) -> str:
    """A line of the compiler without its time stamp and source place."""
    head, found, rest = line.partition(": ")
    line = rest if found and head.startswith("[") else line
    return line.removeprefix("Warning: ")
