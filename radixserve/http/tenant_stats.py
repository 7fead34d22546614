"""The tenants' accounts, and what they run and wait for now, as Prometheus families with the label `tenant`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

ANONYMOUS = "anonymous"
"""How the one tenant of a server without tenants is shown; the engine has no name for it."""
OTHERS = "(other)"
"""The tenants beyond `MAX_TENANTS` as one; no tenant can have this name."""
MAX_TENANTS = 200
"""Tenants that have series of their own: who is seen first keeps them, so that no counter ever falls."""

#: Metric, the account's field, what it is.
COUNTERS = (
    ("tenant_input_tokens", "input_tokens", "Prompt tokens of a tenant, cached ones included."),
    ("tenant_cached_tokens", "cached_tokens", "Prompt tokens of a tenant whose KV came from the cache."),
    ("tenant_output_tokens", "output_tokens", "Tokens generated for a tenant."),
    ("tenant_kv_token_seconds", "kv_token_s", "KV that a tenant's generations held, in token-seconds."),
    ("tenant_queue_seconds", "queue_s", "Time that a tenant's generations waited."),
    ("tenant_requests", "requests", "Programs of a tenant that were admitted."),
    ("tenant_refused", "refused", "Programs of a tenant that were refused."),
)
#: Metric, the field of the engine's statistics, what it is.
GAUGES = (
    ("tenant_num_running", "num_running", "Sequences of a tenant in the running batch."),
    ("tenant_num_waiting", "num_waiting", "Sequences of a tenant that wait to run."),
    ("tenant_num_queued", "num_queued", "Generations of a tenant without a first token, those that its limits hold back too."),
)


class TenantCollector(Collector):
    """Hands out what the caller of one scrape may see."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._named: set[str] = set()
        self._accounts: dict[str, dict[str, float]] = {}
        self._model_name = ""
        registry.register(self)

    def update(
        self, accounts: Mapping[str, Mapping[str, Any]] | None, stats: Mapping[str, Mapping[str, Any]], model_name: str
    ) -> None:
        """Take the accounts that may be seen (None: none), and the engine's numbers of now by tenant."""
        self._model_name = model_name
        self._accounts = defaultdict(lambda: defaultdict(float))
        for name, fields in sorted((accounts or {}).items()):
            row = self._accounts[self._label(name)]
            for _, source, _ in COUNTERS:
                row[source] += float(fields.get(source, 0.0))
            # The engine names only the tenants that were active last; of the others nothing is said, rather than 0.
            now = stats.get("" if name == ANONYMOUS else name, {})
            for _, source, _ in GAUGES:
                if source in now:
                    row[source] += float(now[source])

    def describe(self) -> Iterable[Metric]:
        """No families are fixed beforehand."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape; none when no account may be seen."""
        if not self._accounts:
            return
        labels = ["model_name", "tenant"]
        for name, source, text in COUNTERS:
            yield self._filled(CounterMetricFamily(f"radixserve:{name}", text, labels=labels), source)
        for name, source, text in GAUGES:
            yield self._filled(GaugeMetricFamily(f"radixserve:{name}", text, labels=labels), source)

    def _filled(self, family: CounterMetricFamily | GaugeMetricFamily, source: str) -> Metric:
        for tenant, row in self._accounts.items():
            if source in row:
                family.add_metric([self._model_name, tenant], row[source])
        return family

    def _label(self, name: str) -> str:
        if name not in self._named and len(self._named) < MAX_TENANTS:
            self._named.add(name)
        return name if name in self._named else OTHERS
