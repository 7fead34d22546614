"""The counters that heartbeats carry, put together from those who count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from radixserve_runtime.protocol import Stats, TenantStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.cache.pages import PagePool
    from radixserve_runtime.cache.radix import RadixCache
    from radixserve_runtime.engine.tenancy import Tenancy
    from radixserve_runtime.scheduler.scheduler import Scheduler

_FEW_TENANTS = 64
_TENANT_STATS_S = 0.25


class Statistics:
    """Makes `Stats`. With many tenants their rows are good for a while: a step doesn't wait for a thousand of them."""

    def __init__(
        self, scheduler: Scheduler, cache: RadixCache, pool: PagePool, tenancy: Tenancy, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._pool = pool
        self._tenancy = tenancy
        self._clock = clock
        self._tenants: dict[str, TenantStats] = {}
        self._tenants_s = -math.inf

    def make(self, num_aborted: int) -> Stats:
        """The state now; `uptime_s` and `idle_s` are the caller's to fill in."""
        scheduler, counters, pool = self._scheduler, self._scheduler.counters, self._pool
        return Stats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            pages_total=pool.num_pages,
            pages_free=pool.num_free,
            pages_cached=pool.num_cached,
            pages_locked=pool.num_locked,
            page_size_tokens=pool.page_size_tokens,
            num_steps=counters.num_steps,
            num_batched_tokens=counters.num_batched_tokens,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_prompt_tokens_computed=counters.num_prompt_tokens_computed,
            num_cached_tokens=counters.num_cached_tokens,
            num_output_tokens=counters.num_output_tokens,
            num_draft_tokens=counters.num_draft_tokens,
            num_accepted_draft_tokens=counters.num_accepted_draft_tokens,
            num_preemptions=counters.num_preemptions,
            num_aborted=num_aborted,
            num_evicted_pages=self._cache.num_evicted_pages,
            num_leases=self._tenancy.num_leases,
            num_resets=self._cache.num_resets,
            tenants=self._tenant_rows(),
        )

    def _tenant_rows(self) -> dict[str, TenantStats]:
        now_s = self._clock()
        if len(self._tenants) <= _FEW_TENANTS or now_s - self._tenants_s >= _TENANT_STATS_S:
            self._tenants, self._tenants_s = self._tenancy.tenants(self._scheduler.tenant_stats()), now_s
        return self._tenants
