"""From logits to what a token means for its request: grammar, draw, end of sequence, stop strings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from radixserve_runtime.grammar.cutter import Cutter
from radixserve_runtime.grammar.request import GrammarError
from radixserve_runtime.grammar.store import GrammarStore
from radixserve_runtime.sampling.sampler import SampledToken, Sampler, SamplingFailure

if TYPE_CHECKING:
    from radixserve_runtime.engine.requests import Generation
    from radixserve_runtime.protocol import GrammarRef, TokenLogprob

logger = logging.getLogger(__name__)

MAX_DRAFT_TOKENS = 16
#: Of forced text that is known so much is enough for a draft, whatever its tokens are.
_ENOUGH_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Drawn:
    """One drawn token and what follows from it."""

    token_id: int
    logprob: TokenLogprob | None = None
    hold_bytes: int = 0
    ends: bool = False
    stop: bytes = b""
    stop_token_id: int = -1
    cut_bytes: int = 0


#: The token, or why this request can't go on.
Outcome: TypeAlias = "Drawn | str"


class Drawer:
    """Draws for the requests of one tokenizer's vocabulary. Rows of the LM head beyond it are never drawn."""

    def __init__(
        self, vocabulary: tuple[bytes, ...], eos_token_ids: tuple[int, ...], grammar_marks: dict[int, bytes] | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.eos_token_ids = eos_token_ids
        self.grammar_marks = grammar_marks or {}
        self._sampler = Sampler(len(vocabulary))
        self._known = [self.grammar_marks.get(token_id, token) for token_id, token in enumerate(vocabulary)]
        self._grammars = GrammarStore(self._known, len(vocabulary), eos_token_ids)
        self._cutter = Cutter(self._known)
        self._grammars.warm_up()  # now, while nobody decodes: the first constrained request must not stall the others

    def attach_grammar(self, generation: Generation, grammar: GrammarRef) -> bool:
        """Give a generation its grammar; False when the payload is needed first. Raises `GrammarError`."""
        if grammar.payload:
            self._grammars.put(grammar.key, grammar.payload, generation.message.owner.tenant)
        elif not self._grammars.has(grammar.key):
            return False
        generation.grammar = self._grammars.matcher(grammar.key)
        generation.mask = self._grammars.new_mask_row()
        return True

    def forced(self, generation: Generation, max_tokens: int) -> list[int]:
        """Tokens that a generation's grammar forces next, as far as it leaves no choice of text.

        Of the ways to cut that text into tokens this is one (the longest first): which one the model would take its logits say.
        """
        if generation.grammar is None or max_tokens < 1:
            return []
        if len(generation.forced) < _ENOUGH_BYTES:  # to find all of a long text anew for each draft would hold up every step
            generation.forced = generation.grammar.forced()
        return self._cutter.cut(generation.forced, min(max_tokens, MAX_DRAFT_TOKENS))

    def draw(self, rows: list[tuple[Generation, torch.Tensor]]) -> list[Outcome]:
        """One outcome a row, in order; a row that fails does not touch the others, nor one that makes drawing raise."""
        return [
            token if isinstance(token, str) else self._accept(generation, token.token_id, token.logprob)
            for (generation, _), token in zip(rows, self._sample_or_split(rows), strict=True)
        ]

    def _sample_or_split(self, rows: list[tuple[Generation, torch.Tensor]]) -> list[SampledToken | str]:
        """Nothing changes in here, so that what raises can be done again row by row."""
        try:
            return self._sample(rows)
        except Exception as error:
            if len(rows) == 1:
                logger.exception("request %d can't be drawn for", rows[0][0].message.request_id)
                return [f"{type(error).__name__}: {error}"]
        return [token for row in rows for token in self._sample_or_split([row])]

    def _sample(self, rows: list[tuple[Generation, torch.Tensor]]) -> list[SampledToken | str]:
        problems: dict[int, str] = {}
        masks: list[torch.Tensor | None] = []
        for index, (generation, _) in enumerate(rows):
            masks.append(None)
            if generation.grammar is not None and generation.mask is not None:
                try:
                    generation.grammar.fill(generation.mask)
                    masks[index] = generation.mask
                except GrammarError as error:
                    problems[index] = str(error)
        logits = as_matrix([row for _, row in rows])[:, : len(self.vocabulary)]
        sampled = self._sampler.sample(logits, [generation.row for generation, _ in rows], masks)
        return [
            problems.get(index) or (token.message if isinstance(token, SamplingFailure) else token)
            for index, token in enumerate(sampled)
        ]

    def _accept(self, generation: Generation, token_id: int, logprob: TokenLogprob | None) -> Outcome:
        below_min = generation.row.below_min_tokens
        generation.row.append(token_id)
        complete = False
        if generation.grammar is not None and token_id not in generation.message.sampling.stop_token_ids:
            if not generation.grammar.accept(token_id):
                return f"the grammar does not allow the token {token_id} that was drawn"
            complete = generation.grammar.is_terminated
            generation.went_on_with(self._known[token_id])
        if token_id in generation.ends or complete:
            return Drawn(token_id, logprob, ends=True, stop_token_id=token_id)
        if generation.stops is None:
            return Drawn(token_id, logprob)
        found = generation.stops.feed(token_id, may_end=not below_min)
        return Drawn(token_id, logprob, found.cut_bytes or found.hold_bytes, found.matched, found.stop, -1, found.cut_bytes)


def as_matrix(rows: list[torch.Tensor]) -> torch.Tensor:
    """The rows [V] as one [R, V]: a view where they already lie one after the other (a step of decodes), else a copy."""
    first = rows[0]
    size = first.shape[0]
    base, offset = first.untyped_storage().data_ptr(), first.storage_offset()
    if first.stride(0) == 1 and all(
        row.untyped_storage().data_ptr() == base and row.storage_offset() == offset + index * size
        for index, row in enumerate(rows)
    ):
        return first.as_strided((len(rows), size), (size, 1))
    return torch.stack(rows)
