"""Log-probabilities of tokens that were given, gathered chunk by chunk: of a prompt, or of a score's options.

A preempted sequence computes some positions twice; only what comes next is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.sampling.logprobs import chosen_logprobs, token_logprobs

if TYPE_CHECKING:
    import torch

    from radixserve_runtime.engine.executor import ChunkLogits
    from radixserve_runtime.engine.requests import Generation, Scoring
    from radixserve_runtime.protocol import TokenLogprob


def collect_score(scoring: Scoring, result: ChunkLogits, vocab_size: int) -> None:
    """Add what a chunk says of its option to `scoring.logprobs`."""
    collected = scoring.logprobs[scoring.sequences.index(result.chunk.sequence)]
    rows, token_ids = _next_rows(result, len(collected), vocab_size)
    if token_ids:
        collected.extend(chosen_logprobs(rows, token_ids))


def collect_prompt(generation: Generation, result: ChunkLogits, vocab_size: int) -> tuple[TokenLogprob, ...] | None:
    """Add what a chunk says of the prompt; all entries when the prompt is complete and they were asked for, else None."""
    sequence = generation.sequence
    if sequence.logprobs_from < 1 or generation.prompt_logprobs_sent:
        return None
    rows, token_ids = _next_rows(result, len(generation.prompt_logprobs), vocab_size)
    if token_ids:
        generation.prompt_logprobs.extend(token_logprobs(rows, token_ids, generation.message.sampling.prompt_logprobs))
    if result.chunk.end < sequence.num_prompt_tokens:
        return None
    generation.prompt_logprobs_sent = True
    return tuple(generation.prompt_logprobs)


def _next_rows(result: ChunkLogits, num_collected: int, vocab_size: int) -> tuple[torch.Tensor, list[int]]:
    """Rows [n, vocab_size] that follow what was collected, and the tokens that they predict."""
    sequence = result.chunk.sequence
    position = sequence.logprobs_from + num_collected
    rows = result.prompt_rows[max(0, position - result.first_predicted) :, :vocab_size]
    return rows, sequence.token_ids[position : position + rows.shape[0]]
