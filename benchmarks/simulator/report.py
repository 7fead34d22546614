"""What a run found, as numbers and as text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .cost import Capacity
    from .quantiles import Summary


@dataclass(frozen=True, slots=True)
class TenantResult:
    """One tenant."""

    name: str
    part: str
    weight: float
    requests: int
    charge: float
    service: tuple[float, ...]
    """Charge units by stretch of time (`Result.stretch_s`)."""


@dataclass(frozen=True, slots=True)
class Result:
    """One policy on one workload. Times are virtual, but for `cpu_s`, the time that the simulation took."""

    policy: str
    leases: bool
    lost_leases: int
    """Leases that time or eviction ended before their branch went on."""
    num_requests: int
    num_programs: int
    num_steps: int
    makespan_s: float
    busy_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    computed_tokens: int
    ideal_tokens: int
    """What a cache without limit would have computed."""
    preemptions: int
    evicted_pages: int
    gap: float
    """The largest difference in service (charge units by weight) of two tenants while both were backlogged."""
    gap_pair: tuple[str, str]
    gap_bound: float | None
    """2 (2 quantum + largest charge of a step), as docs/fairness.md derives it; None for policies that promise none."""
    largest_step_charge: float
    """Of one tenant, divided by its weight."""
    ttft_s: dict[str, Summary]
    """By `class/part of the tenants`, and over all."""
    queued_s: Summary
    num_overdue: int
    """Requests that waited beyond the ageing time for their first slot."""
    num_late: int
    """How often one that had waited for longest, and whose turn it was, was passed over by another of its tenant."""
    completion_s: Summary
    engine_s: Summary
    """Completion without the programs' own pauses."""
    tenants: tuple[TenantResult, ...]
    stretch_s: float
    cpu_s: float

    @property
    def hit_rate(self) -> float:
        """Cached part of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens served in a second in which the machine worked."""
        return (self.prompt_tokens + self.output_tokens) / self.busy_s if self.busy_s else 0.0

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that went through the model more often than they had to, through eviction and preemption."""
        return self.computed_tokens - self.ideal_tokens

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        derived = {name: getattr(self, name) for name in ("hit_rate", "tokens_per_s", "recomputed_tokens")}
        return dataclasses.asdict(self) | derived


def workload_text(capacity: Capacity, load: float, scale: float, tenants: str) -> str:
    """What was simulated, in words."""
    return (
        f"lengths x {scale:.4g}: prompts {capacity.mean_prompt_tokens:.0f} tokens, of which new {capacity.mean_new_tokens:.0f}, "
        f"outputs {capacity.mean_output_tokens:.0f} (means)\n"
        f"capacity {capacity.requests_per_s:.2f} requests/s ({capacity.sessions_per_s:.4f} sessions/s), computed for {capacity.batch:.0f} sequences "
        f"a step and a cache that never evicts; load {load:g} of it\n"
        f"sessions were assigned to {tenants}"
    )


def table(results: Sequence[Result]) -> str:
    """One line a policy."""
    head = (
        "policy",
        "tokens/s",
        "hit rate",
        "recomputed",
        "preempted",
        "TTFT p50",
        "p99",
        "longest wait",
        "overdue / late",
        "program mean",
        "p50",
        "p99",
        "in engine",
        "gap",
        "bound",
    )
    rows = [head, *(_row(result) for result in results)]
    return _aligned(rows)


def _row(result: Result) -> tuple[str, ...]:
    ttft = result.ttft_s["all"]
    return (
        result.policy + (" +leases" if result.leases else ""),
        f"{result.tokens_per_s:.0f}",
        f"{result.hit_rate:.4f}",
        f"{result.recomputed_tokens}",
        f"{result.preemptions}",
        f"{ttft.p50:.2f} s",
        f"{ttft.p99:.2f} s",
        f"{result.queued_s.max:.1f} s",
        f"{result.num_overdue} / {result.num_late}",
        f"{result.completion_s.mean:.1f} s",
        f"{result.completion_s.p50:.1f} s",
        f"{result.completion_s.p99:.1f} s",
        f"{result.engine_s.mean:.1f} s",
        f"{result.gap:.0f}",
        "-" if result.gap_bound is None else f"{result.gap_bound:.0f}",
    )


def waiting_table(results: Sequence[Result]) -> str:
    """TTFT by class and part of the tenants."""
    groups = [name for name in results[0].ttft_s if name != "all"]
    rows = [("TTFT p50 / p99, s", *(result.policy for result in results))]
    for group in groups:
        cells = [result.ttft_s[group] for result in results if group in result.ttft_s]
        rows.append((group, *(f"{cell.p50:.2f} / {cell.p99:.2f}" for cell in cells)))
    return _aligned(rows)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
