"""Every setting of `radixserve serve`: one field here is one flag and one key of the TOML file."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from radixserve_lang.errors import RadixServeError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class ConfigError(RadixServeError, ValueError):
    """A setting that can't be used; the text names it and says what is allowed."""


def _flag(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


#: Settings that are paths, which a file gives relative to itself.
_PATHS = ("tenants", "usage_db", "server_keys")


@dataclass(frozen=True)
class ServeConfig:
    """Settings of one engine and of the HTTP server before it."""

    model: str = _flag("smollm2-135m", "Model: the bundled default, a GGUF file, a Hugging Face folder or a hub id.")
    served_model_name: str = _flag("", "Name that clients see; empty: derived from MODEL. Several, comma-separated, are aliases.")
    host: str = _flag("127.0.0.1", "Address to listen on; one that other machines reach needs --tenants.")
    port: int = _flag(8000, "Port to listen on; 0 takes a free one.")
    max_connections: int = _flag(4096, "HTTP connections that may be open; a further one gets 503.")
    listen: str = _flag("", "Address for programs on other machines, tcp://HOST:PORT; it needs --tenants and --server-keys.")
    server_keys: str = _flag("", "Key file of --listen, made by `radixserve keygen`.")
    dtype: Literal["bfloat16", "float32"] = _flag("bfloat16", "Type of weights, activations and KV.")
    quantization: Literal["none", "int8", "int4"] = _flag(
        "none", "Matrices in 8 or 4 bits; GGUF's Q8_0, Q4_0 and Q4_1 stay as they are where the bits fit."
    )
    backend: Literal["auto", "reference", "torch", "cpu", "flashinfer"] = _flag("auto", "Kernel backend.")
    device: str = _flag("cpu", "Device of the model: cpu or cuda.")
    kv_tokens: int = _flag(65_536, "Tokens that the KV pool holds.")
    page_size: int = _flag(16, "Tokens in a KV page.")
    max_context: int = _flag(0, "Longest sequence, prompt and output; 0: what the model allows.")
    max_batch_tokens: int = _flag(512, "Most tokens of one step, prefill and decode together.")
    max_running: int = _flag(64, "Most sequences of one step.")
    max_queued: int = _flag(512, "Generations that may wait for a first token before new programs get 503.")
    max_queued_tokens: int = _flag(0, "Uncached prompt tokens that may wait before new programs get 503; 0: no limit.")
    itl_target_ms: float = _flag(0.0, "Bound on a step that mixes prefill beside decodes; 0: twice a pure decode step.")
    stream_interval_ms: float = _flag(
        30.0, "Streams tell of new tokens so often at most, the first at once; 0: of each token by itself."
    )
    prefix_cache: bool = _flag(True, "Keep and share KV in the radix tree.")
    jump_forward: bool = _flag(True, "Let text that a grammar forces take one step; the answer is the same.")
    prompt_lookup: bool = _flag(
        True, "Guess from what a sequence has said or was told before; the answer is the same, and sooner."
    )
    schedule: Literal["continuous", "dynamic", "static"] = _flag(
        "continuous", "Batching; the last two are baselines for benchmarks."
    )
    policy: Literal["fcfs", "lpm", "vtc", "dlpm"] = _flag("dlpm", "Order of waiting requests; the others are there to compare.")
    quantum: float = _flag(
        512.0,
        "Charge units (docs/fairness.md) that a tenant is served at a stretch: more for more prefix hits, less for smaller gaps.",
    )
    level_unit: float = _flag(
        1024.0,
        "Charge units of a program's first level: programs that had less go first, at twice as many the next level begins; 0: no levels.",
    )
    ageing_s: float = _flag(
        10.0,
        "Seconds (background: twice as many) after which a waiting request is overdue: every fourth of its tenant's goes by waiting alone.",
    )
    max_queue_delay_ms: float = _flag(50.0, "Dynamic and static batching: how long the first request waits for company.")
    threads: int = _flag(0, "Compute threads; 0: the cores this process may use.")
    pin_threads: bool = _flag(True, "Hold each compute thread to a core of its own, if there are as many as the cores.")
    tool_format: Literal["auto", "hermes", "smollm2", "qwen3_coder", "llama3", "mistral", "mistral_args"] = _flag(
        "auto", "Format in which the model writes tool calls; auto: found out from its template and control tokens."
    )
    tenants: str = _flag("", "Tenants file (docs/tenants.md); empty: one anonymous tenant.")
    allow_anonymous: bool = _flag(
        False, "Without tenants, listen where other machines reach it: whoever does can use the engine."
    )
    usage_db: str = _flag(
        "", "SQLite file that keeps the accounts; empty: in the user's data directory if there are tenants; ':memory:': not kept."
    )
    log_level: Literal["debug", "info", "warning", "error"] = _flag("info", "How much the processes log.")

    def __post_init__(self) -> None:
        """Check what a flag's type does not."""
        for name in ("kv_tokens", "page_size", "max_batch_tokens", "max_running", "max_queued", "max_connections"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_context", "threads", "max_queued_tokens", "itl_target_ms", "max_queue_delay_ms"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must not be negative or NaN, but is {getattr(self, name)}")
        for name in ("ageing_s", "quantum"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be a number above 0, not {getattr(self, name)}")
        if not 0 <= self.stream_interval_ms <= 1000:
            raise ConfigError(f"stream_interval_ms must be from 0 to 1000, not {self.stream_interval_ms}")
        if not 0 <= self.level_unit < math.inf:
            raise ConfigError(f"level_unit must not be negative, but is {self.level_unit}")
        if self.allow_anonymous and self.tenants:
            raise ConfigError("allow_anonymous is for a server without tenants; with a tenants file every request needs a key")
        self._check_listen()
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}")
        if self.kv_tokens < self.page_size:
            raise ConfigError(f"kv_tokens ({self.kv_tokens}) must hold at least one page of page_size ({self.page_size}) tokens")

    def _check_listen(self) -> None:
        if not self.listen:
            if self.server_keys:
                raise ConfigError("server_keys is the key file of listen: give listen too, or leave it out")
            return
        host, _, port = self.listen.removeprefix("tcp://").rpartition(":")
        if not self.listen.startswith("tcp://") or not host or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise ConfigError(f"listen must be tcp://HOST:PORT with an IP address of this machine or *, not {self.listen!r}")
        if not self.tenants:
            raise ConfigError("listen lets tenants' keys in, and no others: give a tenants file with tenants")
        if not self.server_keys:
            raise ConfigError("listen needs the server's key file: `radixserve keygen` makes one; give it with server_keys")


def check_value(name: str, value: Any) -> Any:
    """`value` as the field's type; raises `ConfigError` naming the field and what it takes."""
    hints = get_type_hints(ServeConfig)
    if name not in hints:
        known = ", ".join(f.name for f in fields(ServeConfig))
        raise ConfigError(f"there is no setting {name!r}; the settings are {known}")
    wanted = hints[name]
    choices = get_args(wanted)
    if choices:
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
        return value
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not wanted:
        raise ConfigError(f"{name} must be a {wanted.__name__}, not {value!r}")
    return value


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> ServeConfig:
    """The file's settings (keys as the flags, dashes or underscores), then `overrides`.

    Relative paths of the file's `tenants`, `server_keys` and `usage_db` are relative to its folder.
    """
    values: dict[str, Any] = {}
    if path is not None:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
        for key, value in raw.items():
            name = key.replace("-", "_")
            values[name] = _beside(path, check_value(name, value)) if name in _PATHS else check_value(name, value)
    for name, value in overrides.items():
        values[name] = check_value(name, value)
    return replace(ServeConfig(), **values)


def _beside(file: Path, value: str) -> str:
    """A path of a file's settings, as seen from where the process runs."""
    return value if value in ("", ":memory:") or value.startswith("~") else str(file.parent / value)
