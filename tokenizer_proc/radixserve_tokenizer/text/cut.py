"""Where a stop string ends an answer inside a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_tokenizer.text.tokenizer import TextTokenizer


class Cut(NamedTuple):
    """What stays of an output."""

    ids: list[int]
    """The tokens wholly before the cut, as they were sampled."""
    tail_ids: list[int]
    """The rest of the text before the cut, encoded again."""


def cut_at(tokenizer: TextTokenizer, token_ids: Sequence[int], keep_bytes: int) -> Cut:
    """Cut an output after its first `keep_bytes` bytes. Bytes that no token can spell (a torn character) are left out."""
    if keep_bytes < 0:
        raise ValueError("keep_bytes must not be negative")
    at = 0
    for index, id in enumerate(token_ids):
        token = tokenizer.vocabulary[id] if id < tokenizer.vocab_size else b""
        if at + len(token) > keep_bytes:
            return Cut(list(token_ids[:index]), tokenizer.encode_bytes(token[: keep_bytes - at]))
        at += len(token)
    return Cut(list(token_ids), [])
