"""Log-probabilities of the model itself: log-softmax of its raw logits in float32.

They are taken before temperature, penalties, bias and masks, so they say what the model thinks and not what the request
asked for. The vocabulary is never sorted: a rank is a count of better logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve_runtime.protocol import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Positions handled at once: bounds the temporary memory of long prompts to some 13 MB at 49k tokens.
_CHUNK_ROWS = 64


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int | Sequence[int]) -> list[TokenLogprob]:
    """One entry for each row of float32 (or wider than bfloat16) logits [N, V]: token `token_ids[i]` and the `num_top` best.

    `num_top` is one number or one a row, 0 for none. Equal alternatives come in order of their ids. Raises `ValueError`
    where lengths differ or an id is outside the vocabulary.
    """
    if len(token_ids) != logits.shape[0]:
        raise ValueError(f"{len(token_ids)} tokens for {logits.shape[0]} rows of logits")
    tops = [num_top] * len(token_ids) if isinstance(num_top, int) else list(num_top)
    if len(tops) != len(token_ids):
        raise ValueError(f"{len(tops)} counts of alternatives for {len(token_ids)} rows of logits")
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < logits.shape[1]:
        raise ValueError(f"a token id is outside the vocabulary of {logits.shape[1]}")
    entries: list[TokenLogprob] = []
    for start in range(0, len(token_ids), _CHUNK_ROWS):
        stop = start + _CHUNK_ROWS
        entries += _chunk(logits[start:stop].float(), token_ids[start:stop], tops[start:stop])
    return entries


def chosen_logprobs(logits: torch.Tensor, token_ids: Sequence[int]) -> list[float]:
    """Log-probability of `token_ids[i]` by logits [N, V]: what scoring an option needs, without ranks."""
    if len(token_ids) != logits.shape[0]:
        raise ValueError(f"{len(token_ids)} tokens for {logits.shape[0]} rows of logits")
    values: list[float] = []
    for start in range(0, len(token_ids), _CHUNK_ROWS):
        part = logits[start : start + _CHUNK_ROWS].float()
        index = torch.tensor(token_ids[start : start + _CHUNK_ROWS], device=part.device)[:, None]
        values += (part.gather(1, index)[:, 0] - part.logsumexp(dim=1)).tolist()
    return values


def _chunk(logits: torch.Tensor, token_ids: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    index = torch.tensor(token_ids, device=logits.device)[:, None]
    chosen = logits.gather(1, index)
    normaliser = logits.logsumexp(dim=1, keepdim=True)
    ranks = (logits > chosen).sum(dim=1).tolist()
    logprobs = (chosen - normaliser)[:, 0].tolist()
    alternatives: list[tuple[tuple[int, float], ...]] = [()] * len(token_ids)
    width = min(max(tops), logits.shape[1])
    if width > 0:
        values, ids = logits.topk(width, dim=1)
        best = (values - normaliser).tolist()
        for row, (row_ids, row_best) in enumerate(zip(ids.tolist(), best, strict=True)):
            pairs = sorted(zip(row_ids, row_best, strict=True), key=lambda pair: (-pair[1], pair[0]))
            alternatives[row] = tuple(pairs[: tops[row]])
    return [
        TokenLogprob(token_id=token_id, logprob=logprob, rank=rank, top=top)
        for token_id, logprob, rank, top in zip(token_ids, logprobs, ranks, alternatives, strict=True)
    ]
