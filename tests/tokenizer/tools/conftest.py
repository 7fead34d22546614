"""A small vocabulary with a few control tokens, and outputs drawn at random from what a plan's grammar allows."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from radixserve_runtime.grammar.store import GrammarStore
from radixserve_tokenizer.grammar.compiler import Compiler
from radixserve_tokenizer.grammar.prepare import prepare
from radixserve_tokenizer.tools.marks import stand_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.grammar.request import RequestGrammar
    from radixserve_tokenizer.grammar.composite import Composite
    from radixserve_tokenizer.protocol import CallDelta, Constraint

EOS = 256
#: Ids 257 and on: control tokens that formats use as marks.
CONTROLS = ["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>"]
SPECIAL = {text: 257 + index for index, text in enumerate(CONTROLS)}
VOCABULARY = [bytes([byte]) for byte in range(256)] + [b""] * (1 + len(CONTROLS)) + [b'": ', b'{"', "é".encode(), b"</", b'"}}']


@dataclass
class Sentences:
    """Compiles in this process, and plays a model that draws at random from what the mask allows."""

    vocabulary: list[bytes] = field(default_factory=lambda: VOCABULARY)

    def __post_init__(self) -> None:
        self.vocabulary = [stand_in(index) if index in SPECIAL.values() else token for index, token in enumerate(self.vocabulary)]
        self.compiler = Compiler(self.vocabulary, [EOS])
        self._store = GrammarStore(self.vocabulary, len(self.vocabulary), [EOS])

    def matcher(self, grammar: Constraint | Composite) -> RequestGrammar:
        prepared = prepare(grammar)
        self._store.put(prepared.key, self.compiler.compile(prepared.kind, prepared.source))
        return self._store.matcher(prepared.key)

    def accepts(self, grammar: Constraint | Composite, text: str | Sequence[str | int]) -> bool:
        matcher = self.matcher(grammar)
        pieces = [text] if isinstance(text, str) else text
        ids = [token for piece in pieces for token in ([piece] if isinstance(piece, int) else piece.encode())]
        return all(matcher.accept(token) for token in ids) and matcher.is_complete

    def draw(self, grammar: Constraint | Composite, seed: int, max_tokens: int = 600) -> tuple[list[int], bool]:
        """Ids, and whether the output ended by itself."""
        rng = random.Random(seed)
        matcher = self.matcher(grammar)
        row = torch.zeros((len(self.vocabulary) + 31) // 32, dtype=torch.int32)
        ids: list[int] = []
        for _ in range(max_tokens):
            matcher.fill(row)
            words = row.tolist()
            allowed = [index for index in range(len(self.vocabulary)) if (words[index // 32] >> (index % 32)) & 1]
            assert allowed, f"nothing may follow {ids}"
            token_id = rng.choice(_likely(allowed, rng) or allowed)
            assert matcher.accept(token_id)
            if token_id == EOS:
                return ids, True
            ids.append(token_id)
        return ids, False


def _likely(allowed: list[int], rng: random.Random) -> list[int]:
    """Ends and closing brackets half of the time, so that most outputs end; else printable ASCII, or anything."""
    if rng.random() < 0.5:
        return [token_id for token_id in allowed if token_id in (EOS, *b'"}],<[')]
    if rng.random() < 0.8:
        return [token_id for token_id in allowed if 32 <= token_id < 127]
    return allowed


@dataclass
class Heard:
    """A sink that notes all it is told."""

    said: bytes = b""
    thought: bytes = b""
    calls: list[list[Any]] = field(default_factory=list)
    """[name, arguments, whole]"""

    def text(self, data: bytes) -> None:
        self.said += data

    def reasoning(self, data: bytes) -> None:
        self.thought += data

    def begin(self, name: str) -> None:
        self.calls.append([name, b"", False])

    def arguments(self, data: bytes) -> None:
        self.calls[-1][1] += data

    def end(self) -> None:
        self.calls[-1][2] = True


def joined(deltas: Sequence[CallDelta]) -> list[tuple[str, str, str]]:
    """(id, name, arguments) of each call that these deltas tell of."""
    calls: dict[int, tuple[str, str, str]] = {}
    for delta in deltas:
        id, name, arguments = calls.get(delta.index, ("", "", ""))
        calls[delta.index] = (id or delta.id, name or delta.name, arguments + delta.arguments)
    return [calls[index] for index in sorted(calls)]


@pytest.fixture(scope="session")
def sentences() -> Sentences:
    return Sentences()
