"""What each process is told, composed from the settings of `radixserve serve` and the tenants file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import platformdirs

from radixserve.config import ConfigError
from radixserve.keys import read_pair
from radixserve.models import cache_dir
from radixserve.tenants import TenantsFile, load_tenants
from radixserve_runtime.config import RuntimeConfig, TenantShare
from radixserve_tokenizer.config import TokenizerConfig

if TYPE_CHECKING:
    from radixserve.config import ServeConfig

IN_MEMORY = ":memory:"
"""As `usage_db`: the accounts are not kept."""


class Sockets(NamedTuple):
    """ZMQ addresses of one engine."""

    clients: str
    runtime: str
    tenants: str = ""
    """The file by which the tokenizer process hears of tenants that have changed."""


def declared_tenants(config: ServeConfig) -> TenantsFile:
    """The tenants of the configuration; none without a file. Raises `TenantsFileError`."""
    return load_tenants(Path(config.tenants).expanduser()) if config.tenants else TenantsFile()


def runtime_settings(config: ServeConfig, declared: TenantsFile, model_path: str, sockets: Sockets) -> RuntimeConfig:
    """The runtime process's settings."""
    return RuntimeConfig(
        model=model_path,
        socket=sockets.runtime,
        dtype=config.dtype,
        quantization=config.quantization,
        backend=config.backend,
        device=config.device,
        kv_tokens=config.kv_tokens,
        page_size_tokens=config.page_size,
        max_batch_tokens=config.max_batch_tokens,
        max_running=config.max_running,
        max_context=config.max_context,
        itl_target_ms=config.itl_target_ms,
        prefix_cache=config.prefix_cache,
        jump_forward=config.jump_forward,
        prompt_lookup=config.prompt_lookup,
        schedule=config.schedule,
        policy=config.policy,
        ageing_s=config.ageing_s,
        quantum=config.quantum,
        level_unit=config.level_unit,
        max_queue_delay_ms=config.max_queue_delay_ms,
        num_threads=config.threads,
        pin_threads=config.pin_threads,
        log_level=config.log_level,
        kernel_cache_dir=str(cache_dir() / "kernels"),
        tenants=tuple(
            TenantShare(name=one.name, weight=one.weight, reserved_share=one.reserved_share, max_share=one.max_share)
            for one in declared.tenants
        ),
    )


def tokenizer_settings(
    config: ServeConfig, declared: TenantsFile, model_path: str, model_name: str, sockets: Sockets
) -> TokenizerConfig:
    """The tokenizer process's settings. Raises `ConfigError`."""
    return TokenizerConfig(
        model=model_path,
        model_name=model_name,
        socket=sockets.clients,
        runtime_socket=sockets.runtime,
        listen=config.listen,
        curve_secret_key=read_pair(Path(config.server_keys).expanduser()).secret if config.listen else "",
        max_queued=config.max_queued,
        max_queued_tokens=config.max_queued_tokens,
        tenants=declared.tenants,
        tenants_update=sockets.tenants,
        public_prefixes=declared.public_prefixes,
        usage_db=usage_db(config),
        tool_format=config.tool_format,
        stream_interval_ms=config.stream_interval_ms,
        log_level=config.log_level,
    )


def usage_db(config: ServeConfig) -> str:
    """The SQLite file of the accounts; empty: they are kept in memory alone.

    By default each tenants file has one of its own in the user's data directory, and there is none without tenants. Its
    folder is made here. Raises `ConfigError`.
    """
    if config.usage_db == IN_MEMORY or (not config.usage_db and not config.tenants):
        return ""
    if config.usage_db:
        path = Path(config.usage_db).expanduser().absolute()
        if not path.parent.is_dir():
            raise ConfigError(f"usage_db: the folder {path.parent} does not exist; make it, or choose another file")
        return str(path)
    tenants = Path(config.tenants).expanduser().resolve()
    digest = hashlib.sha256(str(tenants).encode()).hexdigest()[:8]
    path = Path(platformdirs.user_data_dir("radixserve")) / "usage" / f"{tenants.stem}-{digest}.db"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"can't keep accounts in {path.parent}: {error.strerror or error}; choose a file with usage_db"
        ) from error
    return str(path)
