"""What the runtime accepts and what it says.

One ZMQ frame carries one msgpack list of messages. What was flushed together is one frame and is scheduled together.
The tokenizer process connects a DEALER to the runtime's ROUTER. Every message is a tagged Struct; the two typed
decoders at the end of this module are the only way in. This module stays light: the tokenizer process imports it.

The token log of a branch lives in the tokenizer process. A message names the part of the log that the runtime should
already hold by length and hash, and carries only what is new; a runtime that lacks the base answers `NeedTokens` and
the same message is sent again with `base_length` 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

PROTOCOL_VERSION = 1

#: The largest frame either side accepts. A vocabulary of 256k tokens or a grammar of some MB fits.
MAX_FRAME_BYTES = 64 << 20

#: A grammar may leave it to the runtime to count the characters of its strings (docs/decisions/012-counted-strings.md). Its payload
#: then begins with a line of these bytes and the counts that matter, and wherever characters are counted it accepts marks: characters
#: that no token may hold. `MARK_INSIDE` says that a string is open, `MARK_TEXT` that all of the text is counted, `mark(n)` that the
#: n-th character follows.
COUNTS_LINE = b"# counts "
MARK_INSIDE, MARK_TEXT = chr(0x10FFFF), chr(0x10FFFE)
MAX_COUNT = 65_000
"""Counts above this must be multiples of 1,000, and at most `MAX_ROUND_COUNT`."""
_FIRST_MARK = 0x100000
MAX_ROUND_COUNT = MAX_COUNT + 400 * 1000


def mark(count: int) -> str:
    """The mark before the character with this number, from 1 on. Of two counts the larger has the larger mark."""
    return chr(_FIRST_MARK + (count if count <= MAX_COUNT else MAX_COUNT + (count - MAX_COUNT) // 1000))


_HASH_MODULUS = (1 << 61) - 1
_HASH_BASE = 1_000_003


def log_hash(token_ids: Iterable[int], start: int = 0) -> int:
    """Hash of a token log; `log_hash(b, log_hash(a))` is the hash of `a + b`, however the log was cut."""
    value = start
    for token_id in token_ids:
        value = (value * _HASH_BASE + token_id + 1) % _HASH_MODULUS
    return value


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """Base of all messages."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to draw tokens. Everything is resolved by the tokenizer process: no field here means "the default"."""

    max_tokens: int
    """0 asks for no token: only the prompt's log-probabilities."""
    seed: int
    """Unsigned 64 bits. The draw at output position i depends on (seed, i) and the logits alone."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    ignore_eos: bool = False
    stop: tuple[bytes, ...] = ()
    """Matched over the bytes of the output alone, never over the prompt."""
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = -1
    """-1 off, 0 the drawn token's log-probability, k also the k best alternatives."""
    prompt_logprobs: int = -1
    """The same for the prompt's tokens from `prompt_logprobs_from` on; those positions are then computed, not taken from the cache."""
    prompt_logprobs_from: int = 1


class GrammarRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A compiled grammar, by key. `payload` (xgrammar's serialised form, or a grammar's text; before either there may be a line
    that begins with `COUNTS_LINE`) is sent once; `NeedGrammar` asks for it again."""

    key: str
    payload: bytes = b""


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The branch's token log: its first `length` ids, which the runtime should hold, then `new_ids`.

    A `length` below what the runtime holds is a rollback: the log is cut there first.
    """

    length: int = 0
    hash: int = 0
    new_ids: tuple[int, ...] = ()


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks. The tenant comes from a verified credential; the rest narrows or orders within it."""

    tenant: str = ""
    program: int = 0
    cache_salt: str = ""
    priority: Literal["interactive", "standard", "background"] = "standard"


# ---- tokenizer process -> runtime ---------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First message of a connection. Whatever an earlier connection left running is cancelled."""

    version: int
    fingerprint: str
    """Hash of the vocabulary below; the runtime names it in `Ready`."""
    vocabulary: tuple[bytes, ...]
    """Bytes of every token, index = id; b"" for control tokens."""
    eos_token_ids: tuple[int, ...]
    grammar_marks: dict[int, bytes] = {}
    """Control tokens that grammars may name, with bytes that stand for them there and nowhere else."""


class Generate(Message, frozen=True, kw_only=True, tag="gen"):
    """Continue a branch. Answered by `Tokens` (any number) then `Finished`, or by `Failed`, `NeedTokens`, `NeedGrammar`."""

    request_id: int
    branch_id: int
    base: Base
    sampling: Sampling
    owner: Owner = Owner()
    grammar: GrammarRef | None = None
    replica_id: int = 0


class Score(Message, frozen=True, kw_only=True, tag="score"):
    """Log-probabilities of each option after the branch; the branch stays as it was. Answered by `Scored`."""

    request_id: int
    branch_id: int
    base: Base
    options: tuple[tuple[int, ...], ...]
    owner: Owner = Owner()
    replica_id: int = 0


class Fork(Message, frozen=True, kw_only=True, tag="fork"):
    """New branches with the parent's log. A parent that is not known is no error: the children's first use says so."""

    parent_id: int
    child_ids: tuple[int, ...]
    base: Base
    replica_id: int = 0


class Drop(Message, frozen=True, kw_only=True, tag="drop"):
    """Forget these branches. Their KV stays in the tree until it is evicted."""

    branch_ids: tuple[int, ...]


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Stop these requests within one step. Each answers `Finished` with reason "abort"; unknown ids are ignored."""

    request_ids: tuple[int, ...]


class Lease(Message, frozen=True, kw_only=True, tag="lease"):
    """Evict this branch's KV last for `ttl_s` seconds; charged to its tenant, and evicted all the same when nothing else is left."""

    branch_id: int
    base: Base
    ttl_s: float
    owner: Owner = Owner()
    replica_id: int = 0


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """End a branch's lease; unknown branches are ignored."""

    branch_id: int


class Publish(Message, frozen=True, kw_only=True, tag="publish"):
    """Compute a prompt that the operator declared public, and pin it: every tenant may share it. Answered by `Finished` (reason "length") or `Failed`."""

    request_id: int
    token_ids: tuple[int, ...]


class SetWeights(Message, frozen=True, kw_only=True, tag="weights"):
    """Weights of tenants from now on, in place of those before. A tenant that is not named has weight 1. No answer."""

    weights: dict[str, float]


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Sent at least every second. After `peer_timeout_s` of silence the runtime cancels everything."""


class ResetCache(Message, frozen=True, kw_only=True, tag="reset"):
    """Forget all KV that no request uses and no lease keeps. Answered by a `Heartbeat`, whose `Stats.num_resets` counts it."""


ToRuntime: TypeAlias = (
    Hello | Generate | Score | Fork | Drop | Cancel | Lease | Release | Publish | SetWeights | Ping | ResetCache
)


# ---- runtime -> tokenizer process ---------------------------------------------------------------------------------


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is being served."""

    architecture: str
    vocab_size: int
    """Rows of the LM head: at least the tokenizer's vocabulary."""
    max_context: int
    """Most tokens (prompt and output) of one sequence: the model's limit or the pool's, whichever is smaller."""
    dtype: str
    num_layers: int
    num_parameters: int
    backend: str
    """Name of the kernel backend in use."""


class TenantStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tenant now, and its sums since start."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_uncached_tokens: int = 0
    charge: float = 0.0
    """Service so far, in charge units (docs/fairness.md), not divided by the weight."""
    kv_token_s: float = 0.0
    """KV held by its running sequences, in token-seconds."""
    pages: int = 0
    """Pages that its edges and sequences hold."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since start, and the state of the pool now. Pages, not tokens, unless the name says tokens."""

    num_running: int = 0
    num_waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = 0
    """Held by the tree alone: evictable at once. free + cached + locked == total."""
    pages_locked: int = 0
    page_size_tokens: int = 0
    num_steps: int = 0
    num_batched_tokens: int = 0
    """Tokens that went through the model (prefill and decode)."""
    num_prompt_tokens: int = 0
    num_prompt_tokens_computed: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    """Tokens that went through the model as a draft: what a grammar forced, or a guess from the sequence's own text."""
    num_accepted_draft_tokens: int = 0
    """Output tokens that were such a draft and took no step of their own."""
    num_preemptions: int = 0
    num_aborted: int = 0
    num_evicted_pages: int = 0
    uptime_s: float = 0.0
    idle_s: float = 0.0
    """Seconds since the last step finished while there was work to do; 0 when idle. Large: the loop is stuck."""
    num_leases: int = 0
    num_resets: int = 0
    """How often `ResetCache` was carried out: the first `Stats` that count one more tell what it left."""
    tenants: dict[str, TenantStats] = {}
    """Tenants that have had work since start (the tokenizer process bounds how many there can be)."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One position: the token, its log-probability, its rank (0 is the best), and the best alternatives (id, log-probability)."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request cost."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV came from the cache when the request was first admitted."""
    output_tokens: int
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_preemptions: int = 0
    kv_token_s: float = 0.0
    """KV held while running, in token-seconds."""


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """Answer to `Hello`: the model is loaded. `epoch` changes with every start of the runtime."""

    version: int
    epoch: str
    fingerprint: str
    model: ModelInfo
    stats: Stats


class Rejected(Message, frozen=True, kw_only=True, tag="rejected"):
    """Answer to a `Hello` that cannot be served (version, vocabulary)."""

    message: str


class PromptLogprobs(Message, frozen=True, kw_only=True, tag="plp"):
    """Before the first `Tokens`: one entry for each prompt position from `prompt_logprobs_from` on."""

    request_id: int
    entries: tuple[TokenLogprob, ...]


class Tokens(Message, frozen=True, kw_only=True, tag="tok"):
    """Tokens drawn in one step. Of the bytes up to here the last `hold_bytes` are, or may turn out to begin, a stop string."""

    request_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    hold_bytes: int = 0
    cached_tokens: int = -1
    """With a request's first tokens: what its `Usage.cached_tokens` will be. Later -1."""


class Finished(Message, frozen=True, kw_only=True, tag="fin"):
    """The end of a generation. After a stop string, `cut_bytes` bytes of the output (the stop string and what follows it) are not the answer's."""

    request_id: int
    reason: Literal["stop", "length", "abort"]
    usage: Usage
    stop: bytes = b""
    """The stop string that matched."""
    stop_token_id: int = -1
    """The token that ended it: end of sequence or one of `stop_token_ids`. It is the last of the tokens sent."""
    cut_bytes: int = 0


class Scored(Message, frozen=True, kw_only=True, tag="scored"):
    """Log-probability of every token of every option, in the order of the request."""

    request_id: int
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage


class LeaseLost(Message, frozen=True, kw_only=True, tag="lost"):
    """A leased branch's KV was evicted, or its time is over; its next generation computes it again."""

    branch_id: int


class NeedTokens(Message, frozen=True, kw_only=True, tag="need"):
    """The base of this request is not here. Send it again with the whole log."""

    request_id: int
    branch_id: int


class NeedGrammar(Message, frozen=True, kw_only=True, tag="needg"):
    """This grammar key is not here. Send the request again with its payload."""

    request_id: int
    key: str


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """One request failed; nothing else did. request_id -1: a frame that could not be read."""

    request_id: int
    code: str
    message: str
    retryable: bool = False


class Heartbeat(Message, frozen=True, kw_only=True, tag="beat"):
    """Sent every `heartbeat_s`, also while a step runs long."""

    stats: Stats


FromRuntime: TypeAlias = (
    Ready | Rejected | PromptLogprobs | Tokens | Finished | Scored | LeaseLost | NeedTokens | NeedGrammar | Failed | Heartbeat
)

_encoder = msgspec.msgpack.Encoder()
_to_runtime = msgspec.msgpack.Decoder(list[ToRuntime])
_from_runtime = msgspec.msgpack.Decoder(list[FromRuntime])


class MalformedFrameError(ValueError):
    """A frame that is not a list of this protocol's messages. The text says what is wrong with it."""


def encode(messages: list[ToRuntime] | list[FromRuntime]) -> bytes:
    """One frame."""
    return _encoder.encode(messages)


def decode_to_runtime(frame: bytes) -> list[ToRuntime]:
    """Messages of a frame from the tokenizer process; raises `MalformedFrameError`."""
    try:
        return _to_runtime.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedFrameError(str(error)) from error


def decode_from_runtime(frame: bytes) -> list[FromRuntime]:
    """Messages of a frame from the runtime; raises `MalformedFrameError`."""
    try:
        return _from_runtime.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedFrameError(str(error)) from error
