"""Figures of one measured pass. Every field is in the JSON under its name; times are seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from radixserve.bench.ask import Outcome


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many values: median, high percentiles, mean, number of values."""

    p50: float
    p90: float
    p99: float
    mean: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        """None of nothing."""
        if not values:
            return None
        ordered = sorted(values)
        mean = sum(ordered) / len(ordered)
        return Spread(percentile(ordered, 0.5), percentile(ordered, 0.9), percentile(ordered, 0.99), mean, len(ordered))


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the order statistics of a sorted, non-empty sequence."""
    place = (len(ordered) - 1) * fraction
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Goodput:
    """How many requests met a service level. A failed request meets none."""

    ttft_limit_s: float
    itl_limit_s: float
    share: float
    """Of all requests: first text in time, and the mean time of a later token within the limit."""
    strict_share: float
    """The same with no single gap above the limit."""
    requests_per_s: float
    """Those of `share`, by the wall time."""

    @staticmethod
    def of(outcomes: Sequence[Outcome], wall_s: float, ttft_limit_s: float, itl_limit_s: float) -> Goodput:
        """Judge each outcome."""
        prompt = [one for one in outcomes if not one.error and one.ttft_s is not None and one.ttft_s <= ttft_limit_s]
        met = [one for one in prompt if _pace_s(one) <= itl_limit_s]
        strict = [one for one in prompt if max(one.gaps_s, default=0.0) <= itl_limit_s]
        total = max(1, len(outcomes))
        return Goodput(ttft_limit_s, itl_limit_s, len(met) / total, len(strict) / total, len(met) / wall_s if wall_s > 0 else 0.0)


def _pace_s(outcome: Outcome) -> float:
    """Mean time of a token after the first: of several choices the mean gap."""
    if outcome.tpot_s is not None:
        return outcome.tpot_s
    return sum(outcome.gaps_s) / len(outcome.gaps_s) if outcome.gaps_s else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One pass of one part of a workload."""

    workload: str
    part: str
    concurrency: int
    rate: float
    """Arrivals in a second; 0: requests follow each other."""
    repeat: int
    num_requests: int
    num_errors: int
    errors: dict[str, int]
    """By message, the most frequent ten."""
    wall_s: float
    prompt_tokens: int
    cached_tokens: int | None
    """None: the server does not tell."""
    hit_rate: float | None
    """Of the prompts' tokens, of answers that say how many were cached."""
    output_tokens: int
    output_tokens_asked: int
    """At most; the same as `output_tokens` where outputs have fixed lengths."""
    output_counted_by: str
    """"usage" or "chunks" (pieces that arrived)."""
    tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float
    prefill_tokens_per_s: float | None
    """Median over requests of prompt tokens by the time to the first text: the speed of prefill where one request runs at a time."""
    ttft_s: Spread | None
    ttft_first_wave_s: Spread | None
    """Of the first requests, as many as run at a time: they come at once to an engine that has nothing yet. None where arrivals have a
    rate."""
    ttft_later_s: Spread | None
    """Of those after the first wave."""
    itl_s: Spread | None
    """Gaps between pieces of text."""
    tpot_s: Spread | None
    """Of each request the mean time of a token after the first."""
    e2e_s: Spread | None
    goodput: Goodput
    client_cpu_share: float
    """CPU time of this process by the wall time."""
    extras: dict[str, Any] = field(default_factory=dict[str, Any])

    def as_dict(self) -> dict[str, Any]:
        """As it is in the JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a row was measured at."""

    workload: str
    part: str
    concurrency: int
    rate: float
    repeat: int
    ttft_limit_s: float
    itl_limit_s: float


def row_of(setting: Setting, outcomes: Sequence[Outcome], cpu_s: float, extras: dict[str, Any]) -> Row:
    """Figures of at least one outcome. The wall time is from the first request sent to the last answer ended."""
    wall_s = max(one.ended_s for one in outcomes) - min(one.sent_s for one in outcomes)
    wall_s = max(wall_s, 1e-9)
    good = [one for one in outcomes if not one.error]
    first, later = waves(setting, outcomes)
    told = [one for one in good if one.cached_tokens is not None]
    told_prompt = sum(one.prompt_tokens or 0 for one in told)
    cached = sum(one.cached_tokens or 0 for one in told) if told else None
    prompt_tokens = sum(one.prompt_tokens or 0 for one in good)
    output_tokens = sum(one.output_tokens for one in good)
    prefill = Spread.of(
        [(one.prompt_tokens or 0) / max(one.ttft_s, 1e-9) for one in good if one.ttft_s is not None and one.prompt_tokens]
    )
    return Row(
        workload=setting.workload,
        part=setting.part,
        concurrency=setting.concurrency,
        rate=setting.rate,
        repeat=setting.repeat,
        num_requests=len(outcomes),
        num_errors=len(outcomes) - len(good),
        errors=dict(Counter(one.error for one in outcomes if one.error).most_common(10)),
        wall_s=wall_s,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        hit_rate=None if cached is None or not told_prompt else cached / told_prompt,
        output_tokens=output_tokens,
        output_tokens_asked=sum(one.asked.max_tokens * one.asked.n for one in good),
        output_counted_by="usage" if good and all(one.reported_tokens is not None for one in good) else "chunks",
        tokens_per_s=output_tokens / wall_s,
        prompt_tokens_per_s=prompt_tokens / wall_s,
        requests_per_s=len(good) / wall_s,
        prefill_tokens_per_s=None if prefill is None else prefill.p50,
        ttft_s=_ttft(good),
        ttft_first_wave_s=_ttft(first),
        ttft_later_s=_ttft(later),
        itl_s=Spread.of([gap for one in good for gap in one.gaps_s]),
        tpot_s=Spread.of([one.tpot_s for one in good if one.tpot_s is not None]),
        e2e_s=Spread.of([one.ended_s - one.sent_s for one in good]),
        goodput=Goodput.of(outcomes, wall_s, setting.ttft_limit_s, setting.itl_limit_s),
        client_cpu_share=cpu_s / wall_s,
        extras=extras,
    )


def waves(setting: Setting, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """The first wave, and what came later; both are empty where arrivals have a rate. Choices of one request are one request."""
    if setting.rate:
        return [], []
    ordered = sorted(outcomes, key=lambda one: one.sent_s)
    return ordered[: setting.concurrency], ordered[setting.concurrency :]


def _ttft(outcomes: Sequence[Outcome]) -> Spread | None:
    """Over those that had a first text and did not fail."""
    return Spread.of([one.ttft_s for one in outcomes if one.ttft_s is not None and not one.error])
