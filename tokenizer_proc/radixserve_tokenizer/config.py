"""Settings of the tokenizer process. Floor 5 fills them from flags and file; nothing here reads the environment."""

from __future__ import annotations

import msgspec


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use the engine, and how much of it. 0 is no limit where a limit is meant."""

    name: str
    key_hashes: tuple[str, ...] = ()
    """SHA-256 of each API key, in hex. Keys themselves are never stored."""
    curve_keys: tuple[str, ...] = ()
    """Public CURVE keys, as text (Z85): a connection over TCP with one of them is this tenant's."""
    weight: float = 1.0
    classes: tuple[str, ...] = ("interactive", "standard", "background")
    """Priority classes that it may ask for; the first of them in the order standard, background, interactive is its default."""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Prompt and output tokens, by the rule of tenants/quotas.py."""
    max_running: int = 0
    """Generations that the runtime is given at a time; more of an admitted program wait here and are not refused."""
    max_queued: int = 0
    """Generations that may wait for their first token before its new programs are refused with 429."""
    max_programs: int = 0
    """Programs that may be open at a time, idle ones too; 0: a quarter of the engine's."""
    max_context: int = 0
    """Most tokens of one of its sequences, prompt and output; 0: what the model allows."""
    reserved_share: float = 0.0
    max_share: float = 1.0
    admin: bool = False


class PublicPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that every tenant may share: computed and pinned at start."""

    text: str
    role: str = "system"
    """The role of the chat message that it is; empty: raw text."""


class TokenizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One tokenizer process. Passed as JSON on its standard input."""

    model: str
    """The same local GGUF file or Hugging Face folder that the runtime loads."""
    model_name: str
    """The name that clients see."""
    socket: str
    """ZMQ address to bind for clients, `ipc://...`."""
    runtime_socket: str
    """ZMQ address of the runtime."""
    listen: str = ""
    """ZMQ address for clients on other machines too, `tcp://...`; empty: none. It needs tenants and a secret key."""
    curve_secret_key: str = ""
    """The server's CURVE key for `listen`, as text (Z85)."""
    max_queued: int = 512
    """Generations that may wait for their first token before new programs are refused with 503."""
    stream_interval_ms: float = 0.0
    """A client is told of streamed output so often at most: what comes meanwhile goes with the next delta. 0: of all at once."""
    max_programs: int = 4096
    max_options: int = 256
    """Most options of one select or score, and most branches of one fork."""
    max_stop_strings: int = 16
    max_stop_bytes: int = 1024
    max_logit_bias: int = 1024
    max_logprobs: int = 20
    max_remembered_ids: int = 4 << 20
    """Token ids of finished turns that are remembered for when their text comes back (programs/memory.py); 4 bytes each."""
    client_timeout_s: float = 10.0
    """A client silent for this long is gone: its programs are cancelled and dropped."""
    heartbeat_s: float = 1.0
    runtime_timeout_s: float = 5.0
    """A runtime silent for this long is reported as stuck by health."""
    runtime_wait_s: float = 30.0
    """How long ops wait for a runtime that is gone before they fail with 503."""
    compile_timeout_s: float = 4.0
    compile_memory_mb: int = 1024
    tool_format: str = "auto"
    """Format of tool calls (tools/choose.py); "auto": the model's, as far as it shows."""
    log_level: str = "info"
    tenants: tuple[TenantConfig, ...] = ()
    """Empty: one anonymous tenant without limits, and any key is taken."""
    tenants_update: str = ""
    """A file that may come to be: JSON, a list like `tenants`, which are then taken over in their place. Empty: none."""
    public_prefixes: tuple[PublicPrefix, ...] = ()
    max_queued_tokens: int = 0
    """Uncached prompt tokens that may wait before new programs are refused with 503; 0: no limit."""
    max_detached: int = 256
    """Programs of one tenant that may outlive their connection."""
    max_detached_bytes: int = 16 << 20
    """Of outcomes that one of them keeps for its next client; beyond that the oldest are forgotten."""
    max_detached_bytes_of_tenant: int = 64 << 20
    """The same of all of a tenant's."""
    usage_db: str = ""
    """SQLite file that keeps the accounts across restarts; empty: in memory alone."""
