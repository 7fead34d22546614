"""Settings of the runtime process. Floor 5 fills them from flags and file; nothing here reads the environment."""

from __future__ import annotations

from typing import Literal

import msgspec


class TenantShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler and the cache know of a tenant. A tenant that is not listed has the defaults."""

    name: str
    weight: float = 1.0
    """Its part of the machine against other backlogged tenants' weights."""
    reserved_share: float = 0.0
    """Part of the KV pool (0 to 1) that eviction and preemption leave to it."""
    max_share: float = 1.0
    """Part of the KV pool that it may hold at most, running and cached."""


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One runtime process. Passed as JSON on its standard input."""

    model: str
    """A local GGUF file or Hugging Face folder (floor 5 has resolved names and downloads)."""
    socket: str
    """ZMQ address to bind, `ipc://...`."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    quantization: Literal["none", "int8", "int4"] = "none"
    """Matrices in 8 or 4 bits (model/quantize.py)."""
    backend: Literal["auto", "reference", "torch", "cpu", "flashinfer"] = "auto"
    device: str = "cpu"
    kv_tokens: int = 65_536
    """Tokens that the KV pool holds."""
    page_size_tokens: int = 16
    max_batch_tokens: int = 512
    """Most tokens (prefill and decode) of one step."""
    max_running: int = 64
    """Most sequences of one step."""
    max_context: int = 0
    """0: what the model says."""
    itl_target_ms: float = 0.0
    """Bound on a step that mixes prefill beside decodes; 0: a multiple of a pure decode step (see scheduler/budget.py)."""
    prefix_cache: bool = True
    schedule: Literal["continuous", "dynamic", "static"] = "continuous"
    max_queue_delay_ms: float = 50.0
    """Static and dynamic batching: how long the first waiting request waits for company."""
    num_threads: int = 0
    """Compute threads; 0: the cores that this process may use."""
    pin_threads: bool = True
    """Each has a core of its own, where they are as many as the cores that this process may use."""
    jump_forward: bool = True
    """Text that a grammar leaves no choice about goes through the model in one step, as a draft that the masked logits confirm or not."""
    prompt_lookup: bool = True
    """What followed in a sequence where its newest tokens occurred before goes through the model with them, as a draft that its logits confirm or not."""
    heartbeat_s: float = 0.5
    peer_timeout_s: float = 10.0
    kernel_cache_dir: str = ""
    """Where compiled kernels are kept; empty: the user's cache directory."""
    log_level: str = "info"
    policy: Literal["fcfs", "lpm", "vtc", "dlpm"] = "dlpm"
    """Order between and within tenants (scheduler/policy.py)."""
    tenants: tuple[TenantShare, ...] = ()
    ageing_s: float = 10.0
    """A sequence that waited so long (background: twice) is overdue: every fourth admission of its tenant goes to the first such."""
    quantum: float = 512.0
    """Charge units for each unit of weight that a tenant is served at a stretch (docs/fairness.md)."""
    level_unit: float = 1024.0
    """Charge units of a program's first level of attained service; 0: no levels."""
