"""The engine's own counters as Prometheus families, taken from the last answer to the query "stats"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

#: Metric, the engine's counter, what it is.
_COUNTERS = (
    ("prefix_cache_queries", "num_prompt_tokens", "Prompt tokens looked up in the radix cache."),
    ("prefix_cache_hits", "num_cached_tokens", "Prompt tokens whose KV came from the radix cache."),
    ("num_preemptions", "num_preemptions", "Sequences preempted under memory pressure."),
    ("prompt_tokens", "num_prompt_tokens", "Prompt tokens of all requests."),
    ("prompt_tokens_computed", "num_prompt_tokens_computed", "Prompt tokens that went through the model."),
    ("generation_tokens", "num_output_tokens", "Tokens generated."),
    ("requests_aborted", "num_aborted", "Generations that were cancelled."),
    ("engine_steps", "num_steps", "Steps of the engine's loop."),
    (
        "iteration_tokens",
        "num_batched_tokens",
        "Tokens that went through the model, prefill and decode; over engine_steps: the mean of a step.",
    ),
    ("draft_tokens", "num_draft_tokens", "Tokens that went through the model as a draft: forced by a grammar, or guessed."),
    ("accepted_draft_tokens", "num_accepted_draft_tokens", "Of the draft tokens those that were drawn: each saved a step."),
    ("evicted_pages", "num_evicted_pages", "KV pages evicted."),
    ("programs_refused", "num_refused", "Programs that were not admitted."),
)
_GAUGES = (
    ("num_requests_running", "num_running", "Sequences in the running batch."),
    ("num_requests_waiting", "num_waiting", "Sequences that wait to run."),
    ("kv_pages", "pages_total", "KV pages of the pool."),
    ("kv_pages_free", "pages_free", "KV pages that hold nothing."),
    ("kv_pages_cached", "pages_cached", "KV pages held by the radix cache alone, evictable at once."),
    ("kv_pages_locked", "pages_locked", "KV pages in use."),
    ("programs_open", "num_programs", "Programs that are open."),
    ("engine_uptime_seconds", "uptime_s", "Since the engine started."),
    ("engine_idle_seconds", "idle_s", "Since the last step while there is work; large: the loop is stuck."),
)


class EngineCollector(Collector):
    """Hands out the last statistics; a family that the engine does not report is left out, never shown as 0."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._stats: dict[str, float] = {}
        self._up = False
        self._model_name = ""
        registry.register(self)

    def update(self, stats: dict[str, Any] | None, model_name: str) -> None:
        """Take new statistics; None: the engine did not answer, so what it said before is no longer shown."""
        self._up = stats is not None
        self._stats = flatten(stats) if stats is not None else {}
        self._model_name = model_name

    def describe(self) -> Iterable[Metric]:
        """No families are fixed beforehand."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        yield self._gauge("up", "Whether the engine answered this scrape.", float(self._up))
        for name, source, text in _COUNTERS:
            if source in self._stats:
                counter = CounterMetricFamily(f"radixserve:{name}", text, labels=["model_name"])
                counter.add_metric([self._model_name], self._stats[source])
                yield counter
        for name, source, text in _GAUGES:
            if source in self._stats:
                yield self._gauge(name, text, self._stats[source])
        total = self._stats.get("pages_total", 0.0)
        if total > 0:
            used = self._stats.get("pages_locked", 0.0) / total
            yield self._gauge(
                "kv_cache_usage_perc", "KV pages in use over all pages, 0 to 1; what is only cached does not count.", used
            )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"radixserve:{name}", text, labels=["model_name"])
        gauge.add_metric([self._model_name], value)
        return gauge


def flatten(stats: dict[str, Any]) -> dict[str, float]:
    """All numbers of the answer, also those of objects inside it, by their own names; those of single tenants are others'."""
    numbers: dict[str, float] = {}
    for name, value in stats.items():
        if name in ("tenants", "tenants_other"):
            continue
        if isinstance(value, dict):
            for inner, number in flatten(cast("dict[str, Any]", value)).items():
                numbers.setdefault(inner, number)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[name] = float(value)
    return numbers
