"""What the engine remembers of a request while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_runtime.protocol import Usage
from radixserve_runtime.sampling.ends import end_token_ids
from radixserve_runtime.sampling.state import RowState
from radixserve_runtime.sampling.stops import StopMatcher
from radixserve_runtime.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    import torch

    from radixserve_runtime.grammar.request import RequestGrammar
    from radixserve_runtime.protocol import Generate, Owner, Score, TokenLogprob


@dataclass(eq=False, slots=True)
class Generation:
    """A `Generate` under way."""

    message: Generate
    sequence: Sequence
    row: RowState
    ends: frozenset[int]
    """Token ids that end it."""
    stops: StopMatcher | None = None
    grammar: RequestGrammar | None = None
    mask: torch.Tensor | None = None
    """int32 words of its grammar mask; the row is the request's own, so it can't be another's."""
    forced: bytes = b""
    """What its grammar forces next, as far as that is known; all that it forces may be more."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list["TokenLogprob"])
    prompt_logprobs_sent: bool = False

    def went_on_with(self, token: bytes) -> None:
        """Its grammar has accepted a token: what was forced behind it still is."""
        self.forced = self.forced[len(token) :] if token and self.forced.startswith(token) else b""


@dataclass(eq=False, slots=True)
class Scoring:
    """A `Score` under way: one sequence an option."""

    message: Score
    sequences: list[Sequence]
    logprobs: list[list[float]]
    unfinished: int


def namespace(owner: Owner) -> tuple[tuple[str, str], ...]:
    """The part of the tree that an owner may share: typed pairs, so that no salt can equal another kind of name."""
    key = (("tenant", owner.tenant),)
    return (*key, ("salt", owner.cache_salt)) if owner.cache_salt else key


def start_generation(
    message: Generate, token_ids: list[int], now_s: float, vocabulary: Seq[bytes], eos: tuple[int, ...]
) -> Generation:
    """A generation over a branch's log."""
    sampling = message.sampling
    sequence = Sequence(
        request_id=message.request_id,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        max_tokens=sampling.max_tokens,
        namespace=namespace(message.owner),
        logprobs_from=max(1, sampling.prompt_logprobs_from) if sampling.prompt_logprobs >= 0 else -1,
        tenant=message.owner.tenant,
        program=message.owner.program,
        priority=message.owner.priority,
        arrival_s=now_s,
    )
    return Generation(
        message=message,
        sequence=sequence,
        row=RowState(sampling, prompt_ids=token_ids, eos_token_ids=eos),
        ends=end_token_ids(sampling, eos),
        stops=StopMatcher(sampling.stop, vocabulary) if sampling.stop else None,
    )


def start_scoring(message: Score, token_ids: list[int], now_s: float) -> Scoring:
    """One sequence for each option, each the branch's log and the option."""
    sequences = [
        Sequence(
            request_id=message.request_id,
            token_ids=[*token_ids, *option],
            num_prompt_tokens=len(token_ids) + len(option),
            max_tokens=0,
            namespace=namespace(message.owner),
            logprobs_from=len(token_ids),
            tenant=message.owner.tenant,
            program=message.owner.program,
            priority=message.owner.priority,
            arrival_s=now_s,
        )
        for option in message.options
    ]
    return Scoring(message, sequences, [[] for _ in sequences], len(sequences))


def usage(sequences: Seq[Sequence], num_prompt_tokens: int, now_s: float) -> Usage:
    """What one request's sequences cost; times are those of its first."""
    first = sequences[0]
    scheduled = first.first_scheduled_s if first.first_scheduled_s >= 0 else now_s
    drawn = first.first_token_s if first.first_token_s >= 0 else now_s
    return Usage(
        prompt_tokens=num_prompt_tokens,
        cached_tokens=max(0, first.num_cached_tokens),
        output_tokens=sum(sequence.num_output_tokens for sequence in sequences),
        queued_s=max(0.0, scheduled - first.arrival_s),
        prefill_s=max(0.0, drawn - scheduled),
        decode_s=max(0.0, now_s - drawn),
        num_preemptions=sum(sequence.num_preemptions for sequence in sequences),
        kv_token_s=sum(sequence.kv_token_s for sequence in sequences),
    )
