"""Sampling arguments, by OpenAI's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from radixserve_tokenizer.protocol import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SamplingArgs(TypedDict, total=False):
    """What `gen` takes to steer the drawing; the server checks the ranges. Left out means the default in brackets."""

    max_tokens: int | None
    """Most tokens (what is left of the context)."""
    min_tokens: int
    """No end before so many (0)."""
    temperature: float
    """0 to 2; 0 is greedy (1)."""
    top_k: int
    """Only the k likeliest tokens (0: all)."""
    top_p: float
    """0 to 1: only the likeliest tokens that hold this much probability; 0: the likeliest alone (1)."""
    min_p: float
    """Only tokens with at least this share of the likeliest one's probability (0)."""
    repetition_penalty: float
    """Above 0; more than 1 discourages what is in the prompt or output (1)."""
    presence_penalty: float
    """-2 to 2 (0)."""
    frequency_penalty: float
    """-2 to 2 (0)."""
    logit_bias: Mapping[int, float]
    """Added to the logits of these token ids (none)."""
    seed: int | None
    """Of this generation alone (drawn from the run's seed, the branch, and its number among the branch's generations)."""
    ignore_eos: bool
    """Go on past the end of the text (False)."""
    stop: str | Sequence[str] | None
    """Strings that end it; they are not part of the value (none)."""
    stop_token_ids: Sequence[int]
    """Token ids that end it (none)."""
    include_stop: bool
    """Keep the stop string (False)."""
    skip_special_tokens: bool
    """Leave special tokens out of the text (True)."""
    logprobs: int | None
    """Log-probabilities: 0 of the drawn tokens, k (at most 20) also of the k best (None: none)."""


def to_sampling(args: SamplingArgs) -> Sampling:
    """As it goes on the wire; raises TypeError for an unknown name."""
    unknown = set(args) - SamplingArgs.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"gen() got unknown arguments: {', '.join(sorted(unknown))}; it takes {', '.join(SamplingArgs.__annotations__)}"
        )
    fields: dict[str, Any] = dict(args)
    stop = fields.get("stop")
    if "stop" in fields:
        fields["stop"] = () if stop is None else (stop,) if isinstance(stop, str) else _made("stop", tuple, stop)
    for name, kind in (("stop_token_ids", tuple), ("logit_bias", dict)):
        if name in fields:
            fields[name] = _made(name, kind, fields[name])
    if fields.get("logprobs", -1) is None:
        del fields["logprobs"]
    return Sampling(**fields)


def _made(name: str, kind: type[tuple[Any, ...]] | type[dict[Any, Any]], value: Any) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError):
        needed = "a dict of token ids and numbers" if kind is dict else "a list"
        raise TypeError(f"gen({name}={value!r}): {needed} is needed") from None
