"""Puts a runtime together from its settings."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from radixserve_kernels.registry import load_backend
from radixserve_runtime.cache.pages import PagePool
from radixserve_runtime.cache.radix import RadixCache
from radixserve_runtime.engine.core import EngineCore
from radixserve_runtime.engine.executor import Executor
from radixserve_runtime.model.config import read_config
from radixserve_runtime.model.decoder import attention_spec, load_model
from radixserve_runtime.protocol import ModelInfo
from radixserve_runtime.scheduler.config import SchedulerConfig
from radixserve_runtime.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_kernels.interface import AttentionSpec
    from radixserve_runtime.config import RuntimeConfig
    from radixserve_runtime.model.architecture import ModelConfig

logger = logging.getLogger(__name__)


class PoolTooLargeError(ValueError):
    """The KV pool takes more memory than is free. Lower `--kv-tokens`."""


def max_context(config: RuntimeConfig, model: ModelConfig) -> int:
    """Most tokens of one sequence: the model's limit, the setting's, or what the pool holds, whichever is smallest."""
    pool = config.kv_tokens // config.page_size_tokens * config.page_size_tokens
    return min(model.max_context, pool, config.max_context or model.max_context)


def num_parameters(model: ModelConfig) -> int:
    """Weights of the matrices; norms and biases are too few to matter."""
    attention = model.hidden_size * (2 * model.q_size + 2 * model.kv_size)
    mlp = 3 * model.hidden_size * model.intermediate_size
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tied_embeddings else 2)
    return model.num_layers * (attention + mlp) + embeddings


def _check_memory(kv_tokens: int, spec: AttentionSpec, itemsize: int) -> None:
    """Before the pool is written: the system would end some process, perhaps not this one, when the memory is gone."""
    needed = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * itemsize * kv_tokens
    free = psutil.virtual_memory().available
    if needed > free:
        raise PoolTooLargeError(
            f"a KV pool of {kv_tokens:,} tokens takes {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
            f"start with --kv-tokens {int(0.8 * free / needed * kv_tokens)} or less"
        )


def build_core(config: RuntimeConfig, clock: Callable[[], float] = time.monotonic) -> EngineCore:
    """Load the model and everything around it. Raises the model's errors (model/errors.py), the kernels' and `PoolTooLargeError`."""
    started = clock()
    path = Path(config.model)
    model_config = read_config(path)  # first: what can't be served must be said before anything slow
    spec = attention_spec(model_config)
    backend = load_backend(
        config.backend,
        spec,
        device=config.device,
        num_threads=config.num_threads,
        cache_dir=Path(config.kernel_cache_dir) if config.kernel_cache_dir else None,
    )
    logger.info("kernels: %s (%.1f s)", backend.name, clock() - started)
    decoder = load_model(path, config.dtype, backend, device=config.device, quantization=config.quantization)
    form = config.dtype if config.quantization == "none" else f"{config.quantization}, {config.dtype}"
    logger.info("%s loaded as %s (%.1f s)", model_config.architecture, form, clock() - started)
    num_pages = config.kv_tokens // config.page_size_tokens
    if config.device == "cpu":
        _check_memory(config.kv_tokens, spec, decoder.dtype.itemsize)
    backend.allocate_kv(num_pages, config.page_size_tokens, decoder.dtype)
    pool = PagePool(num_pages, config.page_size_tokens, config.tenants)
    cache = RadixCache(pool, enabled=config.prefix_cache)
    scheduler = Scheduler(
        SchedulerConfig(
            max_batch_tokens=config.max_batch_tokens,
            max_running=config.max_running,
            itl_target_ms=config.itl_target_ms,
            schedule=config.schedule,
            max_queue_delay_ms=config.max_queue_delay_ms,
            policy=config.policy,
            tenants={tenant.name: tenant.weight for tenant in config.tenants},
            ageing_s=config.ageing_s,
            quantum=config.quantum,
            level_unit=config.level_unit or math.inf,
            prompt_lookup=config.prompt_lookup,
        ),
        cache,
        pool,
        clock,
    )
    return EngineCore(
        model=ModelInfo(
            architecture=model_config.architecture,
            vocab_size=model_config.vocab_size,
            max_context=max_context(config, model_config),
            dtype=config.dtype,
            num_layers=model_config.num_layers,
            num_parameters=num_parameters(model_config),
            backend=backend.name,
        ),
        scheduler=scheduler,
        cache=cache,
        pool=pool,
        executor=Executor(decoder, backend, config.page_size_tokens),
        clock=clock,
        jump_forward=config.jump_forward,
    )
