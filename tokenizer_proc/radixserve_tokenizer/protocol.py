"""What frontends send to the tokenizer process, and what they hear.

One ZMQ frame carries one msgpack list of messages; ops in one frame are scheduled together. A client connects a DEALER
to the ROUTER. The client allocates program, branch, op and variable numbers (each counted up within its program), so
that nothing waits for a reply; only reading a value waits. Ops of one branch run in order; branches run side by side.

This module stays light: every client imports it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 16 << 20

Priority: TypeAlias = Literal["interactive", "standard", "background"]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "abort"]
ScoreMethod: TypeAlias = Literal["sum", "mean", "unconditional"]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """Base of all messages."""


# ---- values inside ops --------------------------------------------------------------------------------------------


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text", tag_field="t"):
    """User text. It can never become a control token."""

    text: str


class TokenIds(msgspec.Struct, frozen=True, kw_only=True, tag="ids", tag_field="t"):
    """Raw token ids; only in appends without a role."""

    ids: tuple[int, ...]


class VarRef(msgspec.Struct, frozen=True, kw_only=True, tag="var", tag_field="t"):
    """The text of another op's value, once it exists. If that op failed, this op fails too."""

    var: int


Part: TypeAlias = Text | TokenIds | VarRef


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """OpenAI's names and ranges. None is the default that the comment names."""

    max_tokens: int | None = None
    """None: what is left of the context. 0 is allowed: no token, only the prompt's log-probabilities."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 to 2; 0 is greedy."""
    top_k: int = 0
    """0 (or -1) is off."""
    top_p: float = 1.0
    """0 to 1; 0 leaves the likeliest token alone."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """None: drawn from (program seed, branch path, number of this generation on its branch)."""
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """Keep the stop string in the value and in the branch."""
    skip_special_tokens: bool = True
    logprobs: int = -1
    """-1 off; 0 the drawn token; k (at most 20) also the k best."""
    prompt_logprobs: int = -1


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the output must match.

    `source` is a JSON Schema (JSON text; "json_schema" reads it narrowly: where it lists properties and says nothing of others there
    are none; "open_json_schema" writes whatever it allows), a regex, an EBNF grammar, a JSON list of texts of which the output must be one
    ("choice"), a structural tag as vLLM and SGLang have it (JSON text), or empty for any JSON object.
    """

    kind: Literal["json_object", "json_schema", "open_json_schema", "regex", "ebnf", "choice", "structural_tag"]
    source: str = ""


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the model may call."""

    name: str
    description: str = ""
    parameters: str = ""
    """JSON Schema (JSON text) of the arguments, an object; empty: no arguments."""
    strict: bool = False
    """As clients send it. Arguments match the schema either way."""


class ToolUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether and how a generation may call the tools of its branch (see `Tools`)."""

    mode: Literal["auto", "required"] = "auto"
    """"auto": text or calls, as the model likes; "required": at least one call and nothing else."""
    names: tuple[str, ...] = ()
    """Only these of the branch's tools; empty: all."""
    parallel: bool = True
    """More than one call may be made in a turn."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a whole program may use. What goes beyond it ends with `Failed` code "budget_exhausted", and so does what comes later."""

    tokens: int | None = None
    """Output tokens of all its branches."""
    seconds: float | None = None
    """From admission."""
    tool_calls: int | None = None
    """Calls in the values of its generations."""


# ---- ops: client -> tokenizer process ------------------------------------------------------------------------------


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First message of a connection. Answered by `Welcome`, or `Goodbye` when versions differ."""

    version: int
    client: str = ""


class Open(Message, frozen=True, kw_only=True, tag="open"):
    """Start a program with its root branch. Answered by `Admitted` or `Refused`, always before anything else of it."""

    program: int
    branch: int = 0
    api_key: str = ""
    seed: int | None = None
    """None: random. With a seed the whole program is repeatable."""
    priority: Priority = "standard"
    """Where the tenant may not use it, its best class below; where it has none below, its lowest."""
    cache_salt: str = ""
    credits: int = 64
    """How many `Delta` events may be sent before a `Credit`; beyond that deltas coalesce, nothing is lost: what no delta carried is in `Done`."""
    budget: Budget | None = None
    group: str = ""
    """Programs of one tenant with the same group are one program to the scheduler: they share their attained service."""
    detached_ttl_s: float = 0.0
    """Above 0 the program outlives its connection by this long; `Attach` takes it up again. It needs a `resume_key`."""
    resume_key: str = ""
    """A secret of the client's (16 to 128 characters), by which it can be attached to."""


class Attach(Message, frozen=True, kw_only=True, tag="attach"):
    """Take up a detached program of the same tenant under a number of this connection. Answered by `Attached`, then by the stored `Done` or `Failed`
    of each op with a value from `from_op` on, then by what comes; or by `Refused`.

    Ops that were sent and never arrived are sent again by the client with their numbers: those the server has already seen are not run again.
    """

    program: int
    resume_key: str
    api_key: str = ""
    from_op: int = 0
    credits: int = 64


class Append(Message, frozen=True, kw_only=True, tag="append"):
    """Append to a branch. With a `role`, a whole message of the chat template; without, raw text or ids after what is there.

    Raw text after messages continues an open assistant turn (it opens one first), so that a following `Gen` goes on from it.
    """

    program: int
    op: int
    branch: int
    parts: tuple[Part, ...]
    role: str = ""
    fields: dict[str, Any] = {}
    """Further fields of the message that a template may use: name, tool_calls, tool_call_id."""


class Tools(Message, frozen=True, kw_only=True, tag="tools"):
    """Set the tools of a branch, for it and what is forked from it later. In chat mode the template shows them to the model, usually in the system message,
    so what the branch holds is rendered anew (generated turns keep their ids): best sent before the first generation. An empty list takes them away.
    """

    program: int
    op: int
    branch: int
    tools: tuple[ToolSpec, ...] = ()


class Gen(Message, frozen=True, kw_only=True, tag="gen"):
    """Generate after a branch and append the result. In chat mode an assistant turn is opened first when none is open."""

    program: int
    op: int
    branch: int
    var: int
    sampling: Sampling = Sampling()
    constraint: Constraint | None = None
    """Together with `tool_use` "auto": the output is either calls or matches this."""
    tool_use: ToolUse | None = None
    """None: the output is text alone, whatever the branch's tools are."""
    parse_reasoning: bool = True
    """Where the model writes reasoning between marks of its own, give it apart from the text."""
    stream: bool = False
    """Send `Delta` events; otherwise only `Done`."""
    where: str = ""
    """The line of the user's program, for error messages."""


class Select(Message, frozen=True, kw_only=True, tag="select"):
    """Append the option with the best score. The value is that option."""

    program: int
    op: int
    branch: int
    var: int
    options: tuple[str, ...]
    method: ScoreMethod = "mean"
    where: str = ""


class Score(Message, frozen=True, kw_only=True, tag="score"):
    """Score all options; the branch stays as it was. The value is the best option; `Done.scores` has all."""

    program: int
    op: int
    branch: int
    var: int
    options: tuple[str, ...]
    method: ScoreMethod = "mean"
    where: str = ""


class Fork(Message, frozen=True, kw_only=True, tag="fork"):
    """`count` new branches, numbered from `first`, each with what the branch holds when this op is reached."""

    program: int
    op: int
    branch: int
    first: int
    count: int


class Rollback(Message, frozen=True, kw_only=True, tag="rollback"):
    """Cut the branch back to what it held before op `to_op` of this branch ran."""

    program: int
    op: int
    branch: int
    to_op: int


class Lease(Message, frozen=True, kw_only=True, tag="lease"):
    """Keep the KV of what the branch holds warm for `ttl_s` seconds, at most an hour (soft: `LeaseLost` tells when it is gone).

    It ends with `Release`, with the branch's next generation, and when the branch or the program ends.
    """

    program: int
    op: int
    branch: int
    ttl_s: float


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """End a lease."""

    program: int
    op: int
    branch: int


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Stop what these branches are doing and will not do any more; acts at once, out of order. Each pending op ends with `Failed` code "cancelled"."""

    program: int
    branches: tuple[int, ...]


class Drop(Message, frozen=True, kw_only=True, tag="drop"):
    """Cancel and forget these branches."""

    program: int
    branches: tuple[int, ...]


class Close(Message, frozen=True, kw_only=True, tag="close"):
    """End a program: everything of it is cancelled and forgotten. No answer."""

    program: int


class Credit(Message, frozen=True, kw_only=True, tag="credit"):
    """The client can take `amount` more deltas of this program."""

    program: int
    amount: int


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Sent at least every `Welcome.heartbeat_s`; answered by `Pong`."""


class Query(Message, frozen=True, kw_only=True, tag="query"):
    """A control message: no program. Answered by `Reply` with the same `id` (counted by the client).

    kinds: "health" -> Health fields; "stats" -> the runtime's Stats and the tokenizer process's counters; "reset_cache" -> {"pages_leased", "pages_locked"}: what was kept;
    "tokenize" {"text": str, "add_special_tokens": bool} | {"messages": [...], "tools": [ToolSpec, ...], "add_generation_prompt": bool}
    -> {"ids": [...], "text": rendered}; "detokenize" {"ids": [...]} -> {"text": str}, with "separately": true -> {"texts": [one for each id]};
    "usage" {"api_key": str} -> {"tenants": {name: account}}: all tenants for an admin's key, else the caller's own;
    "tenant" {"api_key": str} -> {"tenant": name}: whose key it is, "" where there are no tenants.
    """

    id: int
    api_key: str = ""
    """Over tcp everything but "health" needs a tenant, and "stats" and "reset_cache" an admin; a local socket is its owner's."""
    kind: Literal["health", "stats", "reset_cache", "tokenize", "detokenize", "usage", "tenant"]
    body: dict[str, Any] = {}


Op: TypeAlias = Append | Tools | Gen | Select | Score | Fork | Rollback | Lease | Release
FromClient: TypeAlias = Hello | Open | Attach | Op | Cancel | Drop | Close | Credit | Ping | Query


# ---- events: tokenizer process -> client ---------------------------------------------------------------------------


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model behind this connection."""

    name: str
    architecture: str
    max_context: int
    vocab_size: int
    dtype: str
    fingerprint: str
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """An alternative token."""

    token: str
    token_id: int
    logprob: float
    raw: bytes


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token with its log-probability; `logprob` is None for the first prompt token. `token` shows incomplete UTF-8 as U+FFFD; `raw` is exact."""

    token: str
    token_id: int
    logprob: float | None
    raw: bytes
    top: tuple[TopLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one op cost."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_preemptions: int = 0


class OptionScore(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a select or score."""

    option: str
    score: float
    """By the method asked for; higher is better."""
    logprob_sum: float
    num_tokens: int


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to `Hello`. `epoch` changes when the tokenizer process restarts: programs of an earlier epoch are gone."""

    version: int
    epoch: str
    model: ModelCard
    heartbeat_s: float
    client_timeout_s: float


class RateLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant's buckets now; 0 as a limit means that there is none."""

    limit_requests: int = 0
    remaining_requests: int = 0
    reset_requests_s: float = 0.0
    limit_tokens: int = 0
    remaining_tokens: int = 0
    reset_tokens_s: float = 0.0


class Admitted(Message, frozen=True, kw_only=True, tag="admitted"):
    """The program may run; its later generations queue and are never refused."""

    program: int
    limits: RateLimits | None = None


class Attached(Message, frozen=True, kw_only=True, tag="attached"):
    """A detached program goes on with this connection. The numbers are the first that were never used."""

    program: int
    next_op: int
    next_var: int
    next_branch: int


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The program may not run; what was sent for it is ignored. `status` is an HTTP status."""

    program: int
    status: int
    code: str
    message: str
    retry_after_s: float = 0.0
    limits: RateLimits | None = None


class LeaseLost(Message, frozen=True, kw_only=True, tag="lost"):
    """A branch's lease has ended before its time, or by it."""

    program: int
    branch: int


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that the model made. `arguments` is JSON text as generated, valid for the tool's schema."""

    id: str
    name: str
    arguments: str


class CallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a call: the first has `id` and `name`; the `arguments` pieces of one `index`, joined, are the call's arguments."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Delta(Message, frozen=True, kw_only=True, tag="delta"):
    """New output of a streamed `Gen`; the deltas' texts, joined, are the value (without credits, the beginning of it). May hold several tokens, or none (text withheld)."""

    program: int
    op: int
    var: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    usage: Usage | None = None
    """In the first delta of an op: what its prompt has, and the tokens that were drawn so far. `Done.usage` has all."""


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """An op with a value is done. `token_ids` and `logprobs` are all of it, deltas included; they match `value` (a cut stop string is in neither)."""

    program: int
    op: int
    var: int
    value: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason = "stop"
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for the end-of-sequence token and for length."""
    usage: Usage = Usage()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    scores: tuple[OptionScore, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    """Filled when prompt log-probabilities were asked for."""
    num_branch_tokens: int = 0
    """Length of the branch's token log afterwards."""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls, in order; `value` is then the text beside them."""


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """An op failed. Later ops of its branch answer code "skipped". op -1: a frame or message that could not be used; program -1: no program."""

    program: int
    op: int
    code: str
    message: str
    var: int = -1
    status: int = 500
    param: str = ""
    retryable: bool = False
    partial: str = ""
    """Text that had been generated."""


class Goodbye(Message, frozen=True, kw_only=True, tag="goodbye"):
    """The server ends this connection."""

    epoch: str
    message: str


class Pong(Message, frozen=True, kw_only=True, tag="pong"):
    """Answer to `Ping`."""

    epoch: str


class Reply(Message, frozen=True, kw_only=True, tag="reply"):
    """Answer to a `Query`; a failed one has `error` and its `status`."""

    id: int
    body: dict[str, Any] = {}
    error: str = ""
    status: int = 200


Event: TypeAlias = Welcome | Admitted | Attached | Refused | LeaseLost | Delta | Done | Failed | Goodbye | Pong | Reply

_encoder = msgspec.msgpack.Encoder()
_from_client = msgspec.msgpack.Decoder(list[FromClient])
_event = msgspec.msgpack.Decoder(list[Event])


class MalformedFrameError(ValueError):
    """A frame that is not a list of this protocol's messages. The text says what is wrong with it."""


def encode(messages: list[FromClient] | list[Event]) -> bytes:
    """One frame."""
    return _encoder.encode(messages)


def decode_from_client(frame: bytes) -> list[FromClient]:
    """Messages of a client's frame; raises `MalformedFrameError`."""
    try:
        return _from_client.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedFrameError(str(error)) from error


def decode_events(frame: bytes) -> list[Event]:
    """Events of a frame from the tokenizer process; raises `MalformedFrameError`."""
    try:
        return _event.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedFrameError(str(error)) from error
