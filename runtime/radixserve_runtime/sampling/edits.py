"""What changes logits before the draw, in this order: penalties, logit bias, `min_tokens`, the grammar's mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from radixserve_runtime.grammar.mask import allows_other_than, apply_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve_runtime.sampling.state import RowState


def edit_rows(logits: torch.Tensor, rows: Sequence[RowState], masks: Sequence[torch.Tensor | None]) -> None:
    """Edit float32 logits [R, V] in place, row i by `rows[i]` and, where there is one, the grammar mask `masks[i]`.

    A mask is int32 [ceil(V / 32)] on the CPU, bit set = allowed. Ids at or beyond V are ignored, so that a bad bias
    can't hurt another row.
    """
    vocab_size = logits.shape[1]
    for row_logits, row, mask in zip(logits, rows, masks, strict=True):
        if row.seen is not None:
            _penalise(row_logits, row)
        if row.bias_ids is not None and row.bias_values is not None:
            inside = (row.bias_ids >= 0) & (row.bias_ids < vocab_size)
            row_logits.index_add_(0, row.bias_ids[inside].to(logits.device), row.bias_values[inside].to(logits.device))
        ends = row.min_tokens_ids
        if row.below_min_tokens and ends is not None and (mask is None or allows_other_than(mask, ends)):
            # A grammar that is complete allows nothing but the end: then the grammar wins over min_tokens.
            inside = (ends >= 0) & (ends < vocab_size)
            row_logits.index_fill_(0, ends[inside].to(logits.device), float("-inf"))
    masked = [index for index, mask in enumerate(masks) if mask is not None]
    if masked:
        apply_masks(logits, masked, torch.stack([mask for mask in masks if mask is not None]))


def _penalise(row_logits: torch.Tensor, row: RowState) -> None:
    """Repetition (prompt and output; CTRL, Keskar et al. 2019), then frequency and presence (output), on one row [V]."""
    assert row.seen is not None
    sampling = row.sampling
    ids = row.seen.ids().to(row_logits.device)
    values = row_logits[ids]
    if sampling.repetition_penalty != 1.0:
        penalty = sampling.repetition_penalty
        values = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0:
        counts = row.seen.counts().to(row_logits.device)
        values = values - sampling.frequency_penalty * counts - sampling.presence_penalty * (counts > 0)
    row_logits[ids] = values
