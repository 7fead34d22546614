"""Grammars that the tokenizer process compiled, kept by key, and the state of one request in its grammar.

xgrammar takes most of a second to import and is needed by constrained requests only: it is imported on first use, or by
`warm_up` at start.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from radixserve_runtime.grammar.mask import num_mask_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class GrammarError(RuntimeError):
    """A grammar, or one request's state in it, can't be used. It concerns that request alone."""


class RequestGrammar:
    """Where one request is in its grammar. It belongs to the request, wherever in the batch that is."""

    def __init__(self, matcher: Any, num_tokens: int, num_words: int) -> None:
        self._matcher = matcher
        self._num_tokens = num_tokens
        self._num_words = num_words

    def fill(self, row: torch.Tensor) -> None:
        """Write which tokens may come next into `row`: int32 [ceil(vocab_size / 32)] on the CPU, bit set = allowed.

        End-of-sequence is allowed once the grammar is complete, and never before. Rows of the LM head beyond the
        vocabulary are never allowed. Raises `GrammarError` after the end.
        """
        used = num_mask_words(self._num_tokens)
        if row.shape != (self._num_words,):
            raise GrammarError(f"a mask row of shape {tuple(row.shape)} instead of ({self._num_words},)")
        try:
            self._matcher.fill_next_token_bitmask(row[:used])
        except RuntimeError as error:
            raise GrammarError(f"no mask can be made: {_first_line(error)}") from error
        row[used:] = 0
        # xgrammar leaves the bits behind the last token set.
        if self._num_tokens % 32:
            row[used - 1] &= (1 << (self._num_tokens % 32)) - 1

    def accept(self, token_id: int) -> bool:
        """Go on with a drawn token; False (and no change) where the grammar doesn't allow it."""
        return 0 <= token_id < self._num_tokens and bool(self._matcher.accept_token(token_id))

    def forced(self) -> bytes:
        """The text that has to come next whatever is drawn, as far as there is no choice; empty where there is one, or after the end."""
        if self._matcher.is_terminated():
            return b""
        return str(self._matcher.find_jump_forward_string()).encode(errors="surrogateescape")

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, the one that ended it included. Raises `GrammarError` beyond the start."""
        if num_tokens <= 0:
            return
        try:
            self._matcher.rollback(num_tokens)
        except RuntimeError as error:
            raise GrammarError(f"can't take back {num_tokens} tokens: {_first_line(error)}") from error

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted. Nothing can follow."""
        return bool(self._matcher.is_terminated())

    @property
    def is_complete(self) -> bool:
        """Whether the output so far is a whole sentence of the grammar, so that it may end here."""
        return bool(self._matcher.is_completed())


class GrammarStore:
    """Up to `capacity` grammars; of more, the tenant that has the most here loses its least recently used one. Requests keep the
    grammar that they use. Keys of different tenants differ.

    vocabulary: bytes of each token, b"" for control tokens. vocab_size: rows of the LM head, at least the vocabulary.
    """

    def __init__(self, vocabulary: Sequence[bytes], vocab_size: int, eos_token_ids: Iterable[int], capacity: int = 256) -> None:
        if vocab_size < len(vocabulary):
            raise ValueError(f"the LM head has {vocab_size} rows for a vocabulary of {len(vocabulary)} tokens")
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._vocabulary = list(vocabulary)
        self._num_words = num_mask_words(vocab_size)
        self._eos_token_ids = sorted(set(eos_token_ids))
        self._capacity = capacity
        self._compiled: dict[str, tuple[str, Any]] = {}
        """By key, with the tenant."""
        self._of_tenant: dict[str, OrderedDict[str, None]] = {}
        """Keys, the least recently used first."""
        self._tokenizer_info: Any = None
        self._compiler: Any = None

    @property
    def num_mask_words(self) -> int:
        """Length of a mask row."""
        return self._num_words

    def warm_up(self) -> None:
        """Import xgrammar and index the vocabulary, so that the first constrained request doesn't wait for it."""
        self._info()

    def has(self, key: str) -> bool:
        """Whether `matcher(key)` will find its grammar."""
        return key in self._compiled

    def put(self, key: str, payload: bytes, tenant: str = "") -> None:
        """Keep a tenant's grammar: xgrammar's serialised form (a millisecond per 80 kB), or a grammar's text, which the tokenizer process
        has compiled before and found quick. Raises `GrammarError` where it can't be read.

        The serialised form names the vocabulary it was compiled for, and another one is refused.
        """
        import xgrammar

        try:
            if payload.startswith(b"{"):
                compiled = xgrammar.CompiledGrammar.deserialize_json(payload.decode(), self._info())
            else:
                compiled = self._compile(payload.decode())
        except (RuntimeError, UnicodeDecodeError) as error:
            raise GrammarError(f"the compiled grammar can't be read: {_first_line(error)}") from error
        self._forget(key)
        self._compiled[key] = (tenant, compiled)
        self._of_tenant.setdefault(tenant, OrderedDict())[key] = None
        if len(self._compiled) > self._capacity:
            largest = max(self._of_tenant, key=lambda name: len(self._of_tenant[name]))
            self._forget(next(iter(self._of_tenant[largest])))

    def _forget(self, key: str) -> None:
        if key not in self._compiled:
            return
        tenant, _ = self._compiled.pop(key)
        del self._of_tenant[tenant][key]
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]

    def matcher(self, key: str) -> RequestGrammar:
        """A request's own state at the start of a grammar. Raises `GrammarError` where the key isn't here."""
        import xgrammar

        found = self._compiled.get(key)
        if found is None:
            raise GrammarError(f"grammar {key!r} is not here: send it again with its payload")
        tenant, compiled = found
        self._of_tenant[tenant].move_to_end(key)
        return RequestGrammar(xgrammar.GrammarMatcher(compiled), len(self._vocabulary), self._num_words)

    def new_mask_row(self) -> torch.Tensor:
        """A mask row that allows nothing yet, for `RequestGrammar.fill`: int32 [ceil(vocab_size / 32)]."""
        return torch.zeros(self._num_words, dtype=torch.int32)

    def _compile(self, text: str) -> Any:
        import xgrammar

        if self._compiler is None:
            self._compiler = xgrammar.GrammarCompiler(self._info(), max_threads=1, cache_enabled=False)
        return self._compiler.compile_grammar(xgrammar.Grammar.from_ebnf(text))

    def _info(self) -> Any:
        if self._tokenizer_info is None:
            import xgrammar

            # vocab_size is the vocabulary's, not the LM head's: the tokenizer process compiles without knowing the model.
            self._tokenizer_info = xgrammar.TokenizerInfo(
                self._vocabulary,
                xgrammar.VocabType.RAW,
                vocab_size=len(self._vocabulary),
                stop_token_ids=self._eos_token_ids,
            )
        return self._tokenizer_info


def _first_line(error: Exception) -> str:
    """xgrammar's message without its time stamp and source line."""
    text = str(error).strip().split("\n")[0]
    head, found, rest = text.partition(": ")
    return rest if found and head.startswith("[") else text
