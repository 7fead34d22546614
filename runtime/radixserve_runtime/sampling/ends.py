"""Which tokens end a generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.protocol import Sampling


def end_token_ids(sampling: Sampling, eos_token_ids: Iterable[int]) -> frozenset[int]:
    """Ids that end a generation when drawn: `stop_token_ids` always, end-of-sequence unless `ignore_eos`.

    `min_tokens` is kept by masking these ids out of the draw (sampling/edits.py), so a drawn one ends at once. With
    `ignore_eos` an end-of-sequence token may be drawn, and is a token like any other.
    """
    ends = frozenset(sampling.stop_token_ids)
    return ends if sampling.ignore_eos else ends | frozenset(eos_token_ids)
