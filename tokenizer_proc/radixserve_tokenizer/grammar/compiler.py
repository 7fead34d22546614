"""xgrammar behind one function. Only the worker process imports it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from radixserve_runtime.protocol import COUNTS_LINE
from radixserve_tokenizer.grammar.composite import join
from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.expressions import expression_grammar
from radixserve_tokenizer.grammar.printed import correct_text, without_marks
from radixserve_tokenizer.grammar.schema.compile import schema_grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

MAX_PAYLOAD_BYTES = 8 << 20
MAX_UNCERTAIN_TOKENS = 20_000
"""Tokens of which in one state only the parser can say whether they fit: a mask takes about half a microsecond for each of them, and
several times that where the parser has many possibilities."""
MAX_RECOMPILE_S = 0.4
"""What took longer here is not compiled again in the runtime, where it would hold up a step."""


class CompileError(ValueError):
    """The grammar can't be compiled; the text is for the user."""


class OutOfMemoryError(CompileError):
    """Compiling it ran into the memory limit. What the process still holds is unknown: it had better end."""


class _Written(NamedTuple):
    """A grammar's text, and the numbers of the characters that have marks in it."""

    text: str
    counts: frozenset[int]
    is_foreign: bool = False
    """Not written by us, or a part of it."""


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
        self._lazy_compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True)
        """Leaves masks to when they are first needed, as the runtime's does."""

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
        text, counts, is_foreign = self._text(kind, source)
        text = correct_text(text)
        line = COUNTS_LINE + " ".join(map(str, sorted(counts))).encode() + b"\n" if counts else b""
        started_s = time.process_time()  # not the clock: the machine may be busy
        is_text = kind == "composite" and not is_foreign
        compiler = self._lazy_compiler if is_text else self._compiler
        compiled: Any = compiler.compile_grammar(self._xgrammar.Grammar.from_ebnf(text))
        if not self._can_begin(compiled):
            raise CompileError("the grammar allows no text, not even an empty one")
        if is_foreign:
            self._check_masks(compiled)
        # The serialised form holds the whole automaton once for each rule: of twenty tools it would be 40 MB, which take a
        # hundred times as long to load as the text takes to compile without its masks.
        if is_text and time.process_time() - started_s <= MAX_RECOMPILE_S:
            return line + text.encode()
        return line + str(compiled.serialize_json()).encode()

    @staticmethod
    def _check_masks(compiled: Any) -> None:
        """What we write ourselves has cheap masks, other grammars need not: those would hold up everybody's steps."""
        states: list[tuple[Any, dict[str, Any]]] = json.loads(compiled.serialize_json())["adaptive_token_mask_cache"]
        most = max((len(state["uncertain_indices"]) for _, state in states), default=0)
        if most > MAX_UNCERTAIN_TOKENS:
            raise CompileError(
                f"masks of this grammar would take too long: of {most} tokens only the parser can tell whether they fit. Mostly a bounded "
                "repetition of many characters, as [^x]{1,100}, is the cause: use * or +, a regex, or a JSON schema with maxLength"
            )

    def _can_begin(self, compiled: Any) -> bool:
        """Whether any token, or the end, may come first: of `root ::= root` nothing can."""
        size = compiled.tokenizer_info.vocab_size
        row = self._xgrammar.allocate_token_bitmask(1, size)
        self._xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(row)
        words = [word & 0xFFFFFFFF for word in row[0].tolist()]
        if size % 32:
            words[-1] &= (1 << size % 32) - 1  # bits behind the last token say nothing
        return any(words)

    def _text(self, kind: str, source: str, *, alone: bool = True) -> _Written:
        """A prepared constraint as the text of a grammar, and the counts in it. `alone`: it is no part of a composite."""
        match kind:
            case "json_schema" | "open_json_schema":
                try:
                    text = schema_grammar(json.loads(source), closed=kind == "json_schema")
                except ConstraintError as error:
                    raise CompileError(str(error)) from error
            case "regex":
                try:
                    text = expression_grammar(source, alone=alone)
                except ConstraintError as error:
                    raise CompileError(f"regex: {error}") from error
            case "ebnf":
                return _Written(str(self._xgrammar.Grammar.from_ebnf(source)), frozenset(), is_foreign=True)
            case "composite":
                return self._joined(json.loads(source))
            case _:
                raise CompileError(f"unknown kind of constraint {kind!r}")
        line, _, rest = text.partition("\n")
        counts = (
            frozenset(map(int, line[len(COUNTS_LINE) :].split())) if line.startswith(COUNTS_LINE.decode()) else frozenset[int]()
        )
        return _Written(str(self._xgrammar.Grammar.from_ebnf(rest if counts else text)), counts)

    def _joined(self, whole: dict[str, Any]) -> _Written:
        parts = [(self._part(part), part["kind"].endswith("json_schema")) for part in whole["parts"]]
        counts = frozenset[int]().union(*(part.counts for part, _ in parts))
        if not counts:
            text = join(whole["text"], [(part.text, is_schema) for part, is_schema in parts])
            return _Written(text, counts, any(part.is_foreign for part, _ in parts))
        # What has no counts of its own must not take marks for characters.
        texts = [(part.text if part.counts else without_marks(part.text), is_schema) for part, is_schema in parts]
        return _Written(join(without_marks(whole["text"]), texts), counts, any(part.is_foreign for part, _ in parts))

    def _part(self, part: dict[str, str]) -> _Written:
        """Raises `CompileError` naming the part."""
        try:
            return self._text(part["kind"], part["source"], alone=False)
        except (RuntimeError, ValueError) as error:
            raise CompileError(f"{part['label']}: {_message(error)}") from error


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
