"""Settings of the HTTP server. Floor 5 fills them from flags and file; nothing here reads the environment."""

from __future__ import annotations

import msgspec


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP server. Every limit is answered with an error that names it."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    """Names that a request's `model` may have; the first is the one that is shown.

    Empty: the model's own name and "default". `radixserve serve` always gives names, and "default" is none of its own.
    """

    max_body_bytes: int = 8 << 20
    """Of a request; constraints have the tokenizer process's own limits within it."""
    max_header_bytes: int = 32 << 10
    """Of all headers together, and of the address."""
    header_timeout_s: float = 10.0
    """How long a client may take for the head of a request; then 408."""
    stall_timeout_s: float = 300.0
    """How long a client may leave an answer unread; then its connection ends, and its request."""
    max_connections: int = 4096
    """Open at once, idle ones too; a further one gets 503."""
    body_timeout_s: float = 30.0
    """How long a client may take to send its body, from the head on; then 408."""
    max_messages: int = 4096
    max_prompts: int = 512
    """Prompts of one completions request."""
    max_n: int = 512
    max_choices: int = 512
    """Prompts times `n`."""
    max_stop_strings: int = 16
    """OpenAI allows 4; agents send up to 3."""
    max_stop_bytes: int = 1024
    """Of one stop string, in UTF-8."""
    max_stop_token_ids: int = 64
    max_logit_bias: int = 1024
    max_tools: int = 128
    max_tool_bytes: int = 256 << 10
    """Of one tool's schema, as JSON."""
    max_tools_bytes: int = 1 << 20
    """Of all names, descriptions and schemas together."""
    max_json_depth: int = 64
    """Of what a message carries beside its text."""
    max_cache_salt_chars: int = 256

    max_leases_per_tenant: int = 64
    """Programs that one tenant may keep open between its requests; beyond it the oldest is closed."""
    max_leases: int = 1024
    """The same of all tenants together."""
    max_parents_per_tenant: int = 4096
    """Programs of one tenant whose parents are remembered; beyond it the one that was named longest ago is forgotten."""
    max_parents: int = 65_536
    """The same of all tenants together: who has most loses first."""
    stored_ttl_s: float = 24 * 3600.0
    """How long /v1/responses can be gone on from and read again."""
    max_stored_per_tenant: int = 1000
    max_stored_bytes_per_tenant: int = 32 << 20
    max_stored_bytes: int = 128 << 20
    """Of all tenants' responses; each counts with its whole conversation."""
    stream_credits: int = 64
    """Deltas on their way to a client that does not read; beyond that they coalesce."""
    fork_chunk: int = 128
    """Most branches of one fork op; a larger `n` takes several."""
    admission_timeout_s: float = 15.0
    """How long a request waits to hear whether it is admitted before it is answered with 503."""
    query_timeout_s: float = 2.0
    """How long /health and /metrics wait for the engine."""
    connect_retry_s: float = 1.0
    drain_timeout_s: float = 30.0
    """How long running requests may go on after the server was told to stop."""
