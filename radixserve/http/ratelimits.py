"""A tenant's limits as OpenAI's headers, `x-ratelimit-*`: on answers and on refusals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import RateLimits


def ratelimit_headers(limits: RateLimits | None) -> dict[str, str]:
    """The headers of the buckets that have a limit; none for a tenant without limits."""
    headers: dict[str, str] = {}
    if limits is None:
        return headers
    buckets = (
        ("requests", limits.limit_requests, limits.remaining_requests, limits.reset_requests_s),
        ("tokens", limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_s),
    )
    for name, limit, remaining, reset_s in buckets:
        if limit > 0:
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(max(0, remaining))
            headers[f"x-ratelimit-reset-{name}"] = duration(reset_s)
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: "0s", "120ms", "1.5s", "6m0s", "1h0m0s". Rounded up, so that who waits so long does not come too early."""
    milliseconds = math.ceil(round(max(0.0, seconds) * 1000, 3))
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, left = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{left}s" if hours else f"{minutes}m{left}s"
