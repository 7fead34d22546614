"""Grammars that the tokenizer process compiled, kept by key.

xgrammar takes most of a second to import and is needed by constrained requests only: it is imported on first use, or by
`warm_up` at start.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from radixserve_runtime.grammar.counted import CountedGrammar
from radixserve_runtime.grammar.lengths import TokenLengths
from radixserve_runtime.grammar.mask import num_mask_words
from radixserve_runtime.grammar.request import GrammarError, RequestGrammar, first_line
from radixserve_runtime.protocol import COUNTS_LINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
        self._compiled: dict[str, tuple[str, Any, tuple[int, ...]]] = {}
        """By key, with the tenant and the counts that matter."""
        self._of_tenant: dict[str, OrderedDict[str, None]] = {}
        """Keys, the least recently used first."""
        self._tokenizer_info: Any = None
        self._compiler: Any = None
        self._lengths: TokenLengths | None = None

    @property
    def num_mask_words(self) -> int:
        """Length of a mask row."""
        return self._num_words

    def warm_up(self) -> None:
        """Import xgrammar and index the vocabulary, so that the first constrained request doesn't wait for it."""
        self._info()
        self._token_lengths()

    def has(self, key: str) -> bool:
        """Whether `matcher(key)` will find its grammar."""
        return key in self._compiled

    def put(self, key: str, payload: bytes, tenant: str = "") -> None:
        """Keep a tenant's grammar: xgrammar's serialised form (a millisecond per 80 kB), or a grammar's text, which the tokenizer process
        has compiled before and found quick. Raises `GrammarError` where it can't be read.

        The serialised form names the vocabulary it was compiled for, and another one is refused.
        """
        import xgrammar

        payload, counts = _split(payload)
        try:
            if payload.startswith(b"{"):
                compiled = xgrammar.CompiledGrammar.deserialize_json(payload.decode(), self._info())
            else:
                compiled = self._compile(payload.decode())
        except (RuntimeError, UnicodeDecodeError) as error:
            raise GrammarError(f"the compiled grammar can't be read: {first_line(error)}") from error
        self._forget(key)
        self._compiled[key] = (tenant, compiled, counts)
        self._of_tenant.setdefault(tenant, OrderedDict())[key] = None
        if len(self._compiled) > self._capacity:
            largest = max(self._of_tenant, key=lambda name: len(self._of_tenant[name]))
            self._forget(next(iter(self._of_tenant[largest])))

    def _forget(self, key: str) -> None:
        if key not in self._compiled:
            return
        tenant, _, _ = self._compiled.pop(key)
        del self._of_tenant[tenant][key]
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]

    def matcher(self, key: str) -> RequestGrammar:
        """A request's own state at the start of a grammar. Raises `GrammarError` where the key isn't here."""
        import xgrammar

        found = self._compiled.get(key)
        if found is None:
            raise GrammarError(f"grammar {key!r} is not here: send it again with its payload")
        tenant, compiled, counts = found
        self._of_tenant[tenant].move_to_end(key)
        matcher = xgrammar.GrammarMatcher(compiled)
        if counts:
            return CountedGrammar(matcher, self._vocabulary, self._num_words, counts, self._token_lengths())
        return RequestGrammar(matcher, len(self._vocabulary), self._num_words)

    def new_mask_row(self) -> torch.Tensor:
        """A mask row that allows nothing yet, for `RequestGrammar.fill`: int32 [ceil(vocab_size / 32)]."""
        return torch.zeros(self._num_words, dtype=torch.int32)

    def _token_lengths(self) -> TokenLengths:
        if self._lengths is None:
            self._lengths = TokenLengths(self._vocabulary, self._num_words)
        return self._lengths

    def _compile(self, text: str) -> Any:
        import xgrammar

        if self._compiler is None:
            # What masks need is worked out when a state is first reached: of twenty tools all of it would hold up a step for 0.3 s.
            self._compiler = xgrammar.GrammarCompiler(
                self._info(), max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
            )
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


def _split(payload: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The grammar itself, and the counts that its first line tells."""
    if not payload.startswith(COUNTS_LINE):
        return payload, ()
    line, _, rest = payload.partition(b"\n")
    try:
        return rest, tuple(map(int, line[len(COUNTS_LINE) :].split()))
    except ValueError as error:
        raise GrammarError(f"the compiled grammar's counts can't be read: {error}") from error
