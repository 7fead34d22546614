"""A small vocabulary, a compiler for it, and drawing random sentences of a grammar."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import pytest
import torch

from radixserve_runtime.grammar.store import GrammarStore
from radixserve_tokenizer.grammar.compiler import Compiler
from radixserve_tokenizer.grammar.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.grammar.request import RequestGrammar
    from radixserve_tokenizer.protocol import Constraint

EOS = 256
VOCABULARY = [bytes([byte]) for byte in range(256)] + [b"", b"", b'": ', b", ", b'{"', b"ab", "é".encode(), b"\n\n", b"  "]


class Sentences:
    """Compiles in this process, and plays a model that draws at random from what the mask allows."""

    def __init__(self) -> None:
        self.vocabulary = VOCABULARY
        self.compiler = Compiler(VOCABULARY, [EOS])
        self._store = GrammarStore(VOCABULARY, len(VOCABULARY), [EOS])

    def compile(self, constraint: Constraint) -> bytes:
        prepared = prepare(constraint)
        return self.compiler.compile(prepared.kind, prepared.source)

    def matcher(self, payload: bytes) -> RequestGrammar:
        key = hashlib.sha256(payload).hexdigest()
        if not self._store.has(key):
            self._store.put(key, payload)
        return self._store.matcher(key)

    def accepts(self, payload: bytes, text: str | bytes) -> bool:
        matcher = self.matcher(payload)
        data = text.encode() if isinstance(text, str) else text
        return all(matcher.accept(byte) for byte in data) and matcher.is_complete

    def draw(
        self, payload: bytes, seed: int, max_tokens: int = 400, prefer: Callable[[list[int]], list[int]] | None = None
    ) -> tuple[bytes, bool]:
        """Output bytes, and whether it ended by itself. `prefer` narrows the allowed tokens, as a biased model does."""
        rng = random.Random(seed)
        matcher = self.matcher(payload)
        row = torch.zeros((len(VOCABULARY) + 31) // 32, dtype=torch.int32)
        output = b""
        for _ in range(max_tokens):
            matcher.fill(row)
            words = row.tolist()
            allowed = [index for index in range(len(VOCABULARY)) if (words[index // 32] >> (index % 32)) & 1]
            assert allowed, f"nothing may follow {output!r}"
            token_id = rng.choice((prefer(allowed) if prefer else _likely(allowed, rng)) or allowed)
            assert matcher.accept(token_id)
            if token_id == EOS:
                return output, True
            output += VOCABULARY[token_id]
        return output, False


def _likely(allowed: list[int], rng: random.Random) -> list[int]:
    """Ends and closing brackets half of the time, so that most outputs end; else printable ASCII, or anything."""
    if rng.random() < 0.5:
        return [token_id for token_id in allowed if token_id in (EOS, *b'"}],')]
    if rng.random() < 0.8:
        return [token_id for token_id in allowed if 32 <= token_id < 127]
    return allowed


@pytest.fixture(scope="session")
def sentences() -> Sentences:
    return Sentences()
