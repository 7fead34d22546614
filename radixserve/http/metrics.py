"""Prometheus metrics under the names that vLLM's dashboards know, with the prefix `radixserve:`.

Counters and gauges come from the engine at every scrape and count every program, whichever API sent it. Histograms are measured
here, over the requests of this HTTP server. Each server has a registry of its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from radixserve.http.engine_stats import EngineCollector
from radixserve.http.errors import ClientDisconnectedError
from radixserve.http.tenant_stats import TenantCollector
from radixserve_tokenizer.protocol import Delta, Done

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from radixserve_tokenizer.protocol import Usage

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_LABELS = ("model_name",)


class _Family(Protocol):
    def labels(self, *values: str) -> Any: ...


class Metrics:
    """All metrics of one server. `model_name` is set once the model is known."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.model_name = ""
        self.engine = EngineCollector(self.registry)
        self.tenants = TenantCollector(self.registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"radixserve:{name}", text, _LABELS, buckets=_SECONDS, registry=self.registry)

        def tokens(name: str, text: str) -> Histogram:
            return Histogram(f"radixserve:{name}", text, _LABELS, buckets=_TOKENS, registry=self.registry)

        self.time_to_first_token = seconds(
            "time_to_first_token_seconds",
            "From a request's arrival to its first output (HTTP; from the engine's times when not streamed).",
        )
        self.inter_token_latency = seconds("inter_token_latency_seconds", "Between two deltas of a streamed choice (HTTP).")
        self.time_per_output_token = seconds(
            "time_per_output_token_seconds", "Decode time of a choice over its tokens after the first (HTTP)."
        )
        self.e2e_latency = seconds("e2e_request_latency_seconds", "From a request's arrival to its end (HTTP).")
        self.queue_time = seconds("request_queue_time_seconds", "Time a choice waited to run (HTTP).")
        self.prefill_time = seconds("request_prefill_time_seconds", "Prefill time of a choice (HTTP).")
        self.decode_time = seconds("request_decode_time_seconds", "Decode time of a choice (HTTP).")
        self.prompt_tokens = tokens("request_prompt_tokens", "Prompt tokens of a choice (HTTP).")
        self.generation_tokens = tokens("request_generation_tokens", "Tokens generated for a choice (HTTP).")
        self.success = Counter(
            "radixserve:request_success", "Choices that ended well (HTTP).", (*_LABELS, "finished_reason"), registry=self.registry
        )
        self.failed = Counter(
            "radixserve:request_failed",
            "Requests that ended with an error or were refused (HTTP).",
            _LABELS,
            registry=self.registry,
        )
        self.disconnected = Counter(
            "radixserve:request_disconnected", "Requests whose client went away (HTTP).", _LABELS, registry=self.registry
        )
        self.responses = Counter(
            "radixserve:http_requests", "HTTP answers.", ("method", "path", "status"), registry=self.registry
        )

    def observe(self, histogram: _Family, value: float) -> None:
        """One observation under this model's name."""
        histogram.labels(self.model_name).observe(value)

    def count(self, counter: _Family, *labels: str) -> None:
        """Count one under this model's name."""
        counter.labels(self.model_name, *labels).inc()

    def exposition(self, stats: dict[str, Any] | None, accounts: dict[str, dict[str, Any]] | None = None) -> bytes:
        """The text that Prometheus reads; `stats` None: the engine did not answer. `accounts`: those that the reader may see."""
        self.engine.update(stats, self.model_name)
        self.tenants.update(accounts, (stats or {}).get("tenants", {}), self.model_name)
        return generate_latest(self.registry)


class RequestTimer:
    """Times one request, as a context manager around its work: tells its events, and how it ended, to the metrics."""

    def __init__(self, metrics: Metrics, *, streamed: bool) -> None:
        self._metrics = metrics
        self._streamed = streamed
        self._started = time.monotonic()
        self._last_delta: dict[int, float] = {}
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        metrics = self._metrics
        if isinstance(error, (asyncio.CancelledError, ClientDisconnectedError)):
            metrics.count(metrics.disconnected)
        elif error is not None or self._failed:
            metrics.count(metrics.failed)
        else:
            metrics.observe(metrics.e2e_latency, time.monotonic() - self._started)

    def failed(self) -> None:
        """The request ended with an error that was sent to its client."""
        self._failed = True

    def event(self, choice: int, event: Delta | Done, arrived_at: float) -> None:
        """Count what a program said, and when (monotonic seconds)."""
        if isinstance(event, Delta):
            self._delta(choice, arrived_at)
        else:
            self._done(event.usage, event.finish_reason)

    def _delta(self, choice: int, now: float) -> None:
        before = self._last_delta.get(choice)
        if before is not None:
            self._metrics.observe(self._metrics.inter_token_latency, now - before)
        elif not self._last_delta:
            self._metrics.observe(self._metrics.time_to_first_token, now - self._started)
        self._last_delta[choice] = now

    def _done(self, usage: Usage, finish_reason: str) -> None:
        metrics = self._metrics
        if not self._last_delta and not self._streamed:
            metrics.observe(metrics.time_to_first_token, usage.queued_s + usage.prefill_s)
            self._last_delta[-1] = 0.0
        metrics.observe(metrics.queue_time, usage.queued_s)
        metrics.observe(metrics.prefill_time, usage.prefill_s)
        metrics.observe(metrics.decode_time, usage.decode_s)
        metrics.observe(metrics.prompt_tokens, usage.prompt_tokens)
        metrics.observe(metrics.generation_tokens, usage.output_tokens)
        if usage.output_tokens > 1:
            metrics.observe(metrics.time_per_output_token, usage.decode_s / (usage.output_tokens - 1))
        metrics.count(metrics.success, finish_reason)
