"""The state of one request in its grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixserve_runtime.grammar.mask import num_mask_words

if TYPE_CHECKING:
    import torch


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
            raise GrammarError(f"no mask can be made: {first_line(error)}") from error
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
            raise GrammarError(f"can't take back {num_tokens} tokens: {first_line(error)}") from error

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence token was accepted. Nothing can follow."""
        return bool(self._matcher.is_terminated())

    @property
    def is_complete(self) -> bool:
        """Whether the output so far is a whole sentence of the grammar, so that it may end here."""
        return bool(self._matcher.is_completed())


def first_line(error: Exception) -> str:
    """xgrammar's message without its time stamp and source line."""
    text = str(error).strip().split("\n")[0]
    head, found, rest = text.partition(": ")
    return rest if found and head.startswith("[") else text
