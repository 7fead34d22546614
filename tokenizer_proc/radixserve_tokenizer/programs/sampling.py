"""From the client's sampling arguments to the runtime's: every limit is checked here, and every default resolved."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from radixserve_runtime import protocol as runtime
from radixserve_tokenizer.programs.errors import ContextLengthError, EmptyPromptError, OpError
from radixserve_tokenizer.programs.seeds import unsigned

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Sampling

_MAX_STOP_TOKEN_IDS = 1024
_MAX_INT = 1 << 31


class SamplingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may ask for."""

    vocab_size: int
    max_stop_strings: int
    max_stop_bytes: int
    max_logit_bias: int
    max_logprobs: int


def check(sampling: Sampling, limits: SamplingLimits) -> None:
    """Raise `OpError` naming the argument and its limit; what depends on the prompt's length is `resolve`'s."""
    _check_numbers(sampling, limits)
    _check_logit_bias(sampling.logit_bias, limits)
    _check_stops(sampling, limits)


def resolve(sampling: Sampling, *, seed: int, prompt_tokens: int, max_context: int) -> runtime.Sampling:
    """The runtime's form of a checked `sampling`, for a prompt of this length. `seed` is used where none is given.

    The one rule for the context, whatever the endpoint: a prompt that leaves no room, or prompt and `max_tokens` together
    beyond the context, are refused; without `max_tokens` the rest of the context may be filled.
    """
    if prompt_tokens == 0:
        raise EmptyPromptError
    if prompt_tokens >= max_context:
        raise ContextLengthError(max_context, prompt_tokens, "")
    room = max_context - prompt_tokens
    max_tokens = room if sampling.max_tokens is None else sampling.max_tokens
    if max_tokens > room:
        raise ContextLengthError(max_context, prompt_tokens, f" and max_tokens asks for {max_tokens} more")
    if sampling.min_tokens > max_tokens:
        raise OpError(f"min_tokens must be at most max_tokens ({max_tokens}), not {sampling.min_tokens}", param="min_tokens")
    return runtime.Sampling(
        max_tokens=max_tokens,
        seed=unsigned(seed if sampling.seed is None else sampling.seed),
        min_tokens=sampling.min_tokens,
        # OpenAI's range of top_p starts at 0, where no mass is left but the best token's: that is greedy.
        temperature=sampling.temperature if sampling.top_p > 0 else 0.0,
        top_k=max(0, sampling.top_k),
        top_p=sampling.top_p if sampling.top_p > 0 else 1.0,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        ignore_eos=sampling.ignore_eos,
        stop=tuple(dict.fromkeys(stop.encode() for stop in sampling.stop)),
        stop_token_ids=tuple(dict.fromkeys(sampling.stop_token_ids)),
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
    )


def _within(name: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    # Written so that NaN, which fails every comparison, is refused.
    if (low < value if above_low else low <= value) and value <= high:
        return
    bounds = f"above {low} and at most {high}" if above_low else f"between {low} and {high}"
    raise OpError(f"{name} must be {bounds}, not {value}", param=name)


def _check_numbers(sampling: Sampling, limits: SamplingLimits) -> None:
    _within("temperature", sampling.temperature, 0, 2)
    _within("top_p", sampling.top_p, 0, 1)
    _within("min_p", sampling.min_p, 0, 1)
    _within("presence_penalty", sampling.presence_penalty, -2, 2)
    _within("frequency_penalty", sampling.frequency_penalty, -2, 2)
    _within("repetition_penalty", sampling.repetition_penalty, 0, 10, above_low=True)
    _within("top_k", sampling.top_k, -1, _MAX_INT)
    _within("logprobs", sampling.logprobs, -1, limits.max_logprobs)
    _within("prompt_logprobs", sampling.prompt_logprobs, -1, limits.max_logprobs)
    if sampling.max_tokens is not None and sampling.max_tokens < 0:
        raise OpError(f"max_tokens must be 0 or more, not {sampling.max_tokens}", param="max_tokens")
    _within("min_tokens", sampling.min_tokens, 0, _MAX_INT)
    if sampling.seed is not None and not -(1 << 63) <= sampling.seed < 1 << 64:
        raise OpError("seed must fit 64 bits", param="seed")


def _check_logit_bias(bias: dict[int, float], limits: SamplingLimits) -> None:
    if len(bias) > limits.max_logit_bias:
        raise OpError(f"logit_bias may name at most {limits.max_logit_bias} tokens, not {len(bias)}", param="logit_bias")
    for token_id, value in bias.items():
        check_token_id(token_id, limits.vocab_size, "logit_bias")
        if not (math.isfinite(value) and -100 <= value <= 100):
            raise OpError(f"logit_bias of token {token_id} must be between -100 and 100, not {value}", param="logit_bias")


def _check_stops(sampling: Sampling, limits: SamplingLimits) -> None:
    if len(sampling.stop) > limits.max_stop_strings:
        raise OpError(f"stop may hold at most {limits.max_stop_strings} strings, not {len(sampling.stop)}", param="stop")
    for stop in sampling.stop:
        if not stop:
            raise OpError("a stop string must not be empty", param="stop")
        if len(stop) > limits.max_stop_bytes or len(stop.encode()) > limits.max_stop_bytes:
            raise OpError(f"a stop string may have at most {limits.max_stop_bytes} bytes", param="stop")
    if len(sampling.stop_token_ids) > _MAX_STOP_TOKEN_IDS:
        raise OpError(
            f"stop_token_ids may hold at most {_MAX_STOP_TOKEN_IDS} ids, not {len(sampling.stop_token_ids)}",
            param="stop_token_ids",
        )
    for token_id in sampling.stop_token_ids:
        check_token_id(token_id, limits.vocab_size, "stop_token_ids")


def check_token_id(token_id: int, vocab_size: int, param: str) -> None:
    """Raise `OpError` for an id that the model does not have."""
    if not 0 <= token_id < vocab_size:
        raise OpError(f"{param}: token id {token_id} is not in the vocabulary (0 to {vocab_size - 1})", param=param)
