"""What the scheduler has done since start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Sums since start. A prompt counts at its sequence's first admission, a token when its step is complete."""

    num_steps: int = 0
    num_batched_tokens: int = 0
    """Tokens that went through the model, prefill and decode."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that were found in the cache at first admission."""
    num_prompt_tokens_computed: int = 0
    """Prompt tokens that went through the model, again after a preemption."""
    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    """Tokens that went through the model as a draft."""
    num_accepted_draft_tokens: int = 0
    """Output tokens that were computed as a draft: each saved a step of its sequence."""
    num_preemptions: int = 0
    num_aborted: int = 0
    num_padded_slots: int = 0
    """Static batching: slots that finished sequences kept, summed over steps."""
