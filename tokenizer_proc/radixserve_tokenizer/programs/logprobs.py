"""The runtime's log-probabilities, with the text of the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime import protocol as runtime
    from radixserve_tokenizer.text.tokenizer import TextTokenizer


def describe(tokenizer: TextTokenizer, entries: Sequence[runtime.TokenLogprob]) -> tuple[wire.TokenLogprob, ...]:
    """One entry a token; empty when none were asked for."""
    return tuple(_describe(tokenizer, entry.token_id, entry.logprob, entry.top) for entry in entries)


def describe_prompt(
    tokenizer: TextTokenizer, prompt_ids: Sequence[int], entries: Sequence[runtime.TokenLogprob]
) -> tuple[wire.TokenLogprob, ...]:
    """One entry a prompt token; those before the first that was computed (the very first always) have no log-probability."""
    unknown = len(prompt_ids) - len(entries)
    head = tuple(_describe(tokenizer, token_id, None, ()) for token_id in prompt_ids[:unknown])
    return head + describe(tokenizer, entries)


def _describe(
    tokenizer: TextTokenizer, token_id: int, logprob: float | None, top: Sequence[tuple[int, float]]
) -> wire.TokenLogprob:
    alternatives = tuple(
        wire.TopLogprob(token=tokenizer.token_text(other), token_id=other, logprob=value, raw=_raw(tokenizer, other))
        for other, value in top
    )
    return wire.TokenLogprob(
        token=tokenizer.token_text(token_id), token_id=token_id, logprob=logprob, raw=_raw(tokenizer, token_id), top=alternatives
    )


def _raw(tokenizer: TextTokenizer, token_id: int) -> bytes:
    vocabulary = tokenizer.vocabulary
    return vocabulary[token_id] if token_id < len(vocabulary) else b""
