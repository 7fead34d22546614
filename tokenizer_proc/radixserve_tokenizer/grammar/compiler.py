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
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.schema.compile import schema_grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

#: xgrammar prints U+00F6 as \xf6, and reads as many hexadecimal digits as follow: "Sj\xf6fart" would be another word.
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)", re.DOTALL)
#: A literal or a class in a grammar's text. Classes that say what is not allowed let surrogates through: no UTF-8.
_LITERAL_OR_CLASS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', re.DOTALL)
MAX_PAYLOAD_BYTES = 8 << 20
MAX_RECOMPILE_S = 0.4
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
        started_s = time.process_time()  # not the clock: the machine may be busy
        compiled: Any = self._compiler.compile_grammar(self._xgrammar.Grammar.from_ebnf(text))
        if not self._can_begin(compiled):
            raise CompileError("the grammar allows no text, not even an empty one")
        # The serialised form holds the whole automaton once for each rule: of twenty tools it would be 40 MB, which take ten
        # times as long to load as the text takes to compile.
        if kind == "composite" and time.process_time() - started_s <= MAX_RECOMPILE_S:
            return text.encode()
        return str(compiled.serialize_json()).encode()

    def _can_begin(self, compiled: Any) -> bool:
        """Whether any token, or the end, may come first: of `root ::= root` nothing can."""
        size = compiled.tokenizer_info.vocab_size
        row = self._xgrammar.allocate_token_bitmask(1, size)
        self._xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(row)
        words = [word & 0xFFFFFFFF for word in row[0].tolist()]
        if size % 32:
            words[-1] &= (1 << size % 32) - 1  # bits behind the last token say nothing
        return any(words)

    def _text(self, kind: str, source: str) -> str:
        """A prepared constraint as the text of a grammar."""
        match kind:
            case "json_schema" | "open_json_schema":
                try:
                    text = schema_grammar(json.loads(source), closed=kind == "json_schema")
                except ConstraintError as error:
                    raise CompileError(str(error)) from error
                return str(self._xgrammar.Grammar.from_ebnf(text))
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
            return self._text(part["kind"], part["source"]), part["kind"].endswith("json_schema")
        except (RuntimeError, ValueError) as error:
            raise CompileError(f"{part['label']}: {_message(error)}") from error


def correct_text(grammar: str) -> str:
    """A grammar's text such that reading it gives the grammar that was printed, and that no class has surrogates in it."""
    grammar = _ESCAPE.sub(lambda found: rf"\u00{found[1]}" if found[1] else found[0], grammar)
    return _LITERAL_OR_CLASS.sub(
        lambda found: rf"[^\ud800-\udfff{found[0][2:]}" if found[0].startswith("[^") else found[0], grammar
    )


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
