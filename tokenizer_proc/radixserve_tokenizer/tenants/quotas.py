"""Token buckets: how much a tenant may begin now, and exactly when it may begin more.

Rules. A bucket holds one minute's worth, starts full and fills evenly. A program takes 1 from the bucket of requests
when it is admitted. From the bucket of tokens each generation takes an estimate, its prompt and the output that it asks
for, and when it has ended what it did not use is put back (or what it used beyond that is taken). Generations that came
in one frame with the program's `Open` take theirs at admission; later ones take theirs when they begin and may leave the
bucket in debt, because an admitted program is never refused. In debt a tenant gets no new program, and its programs'
further generations wait until the debt is filled up. What needs more than a bucket can hold needs it to be full, so
that it can run at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from radixserve_tokenizer.protocol import RateLimits

if TYPE_CHECKING:
    from radixserve_tokenizer.config import TenantConfig

_MINUTE_S = 60.0
#: Below this a level counts as reached: sums of fractions of seconds don't come out even.
_ROUNDING = 1e-6


class Bucket:
    """`per_minute` tokens a minute, of which at most a minute's worth can be saved up. The level is below 0 in debt."""

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def change(self, per_minute: int, now: float) -> None:
        """Another limit. What has been used of the minute stays used."""
        self._level = self.level(now) + per_minute - self.per_minute
        self.per_minute = per_minute

    def level(self, now: float) -> float:
        """What is in it at `now`, in seconds of the same clock as ever; a clock that stands back adds nothing."""
        if now > self._at:
            self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / _MINUTE_S)
            self._at = now
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """How long until `amount` can be taken (0: now); what exceeds the bucket needs it to be full."""
        missing = min(amount, self.per_minute) - self.level(now)
        return 0.0 if missing <= _ROUNDING else missing * _MINUTE_S / self.per_minute

    def take(self, amount: float, now: float) -> None:
        """Take it, into debt if need be; a negative amount is put back, as far as there is room."""
        self._level = min(self.per_minute, self.level(now) - amount)

    def reset_s(self, now: float) -> float:
        """How long until it is full."""
        return max(0.0, (self.per_minute - self.level(now)) * _MINUTE_S / self.per_minute)


class Quota:
    """A tenant's two buckets; a limit of 0 is none."""

    __slots__ = ("_requests", "_tokens")

    def __init__(self, config: TenantConfig, now: float) -> None:
        self._requests = Bucket(config.requests_per_minute, now) if config.requests_per_minute else None
        self._tokens = Bucket(config.tokens_per_minute, now) if config.tokens_per_minute else None

    def change(self, config: TenantConfig, now: float) -> None:
        """Other limits."""
        self._requests = _changed(self._requests, config.requests_per_minute, now)
        self._tokens = _changed(self._tokens, config.tokens_per_minute, now)

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens are limited, so that an estimate is needed."""
        return self._tokens is not None

    def wait_s(self, tokens: int, now: float) -> tuple[float, str]:
        """How long until a program whose first generations need `tokens` may start (0: now), and what it waits for."""
        waits = [
            (0.0 if bucket is None else bucket.wait_s(amount, now), what)
            for bucket, amount, what in ((self._requests, 1, "requests"), (self._tokens, tokens, "tokens"))
        ]
        return max(waits)

    def admit(self, tokens: int, now: float) -> None:
        """Take one request and what its first generations need."""
        if self._requests is not None:
            self._requests.take(1, now)
        self.take_tokens(tokens, now)

    def take_tokens(self, tokens: float, now: float) -> None:
        """Take tokens, into debt if need be; a negative number is put back."""
        if self._tokens is not None and tokens:
            self._tokens.take(tokens, now)

    def debt_s(self, now: float) -> float:
        """How long until the bucket of tokens is out of debt."""
        return 0.0 if self._tokens is None else self._tokens.wait_s(0, now)

    def limits(self, now: float) -> RateLimits | None:
        """Both buckets now; None if nothing is limited."""
        requests, tokens = self._requests, self._tokens
        if requests is None and tokens is None:
            return None
        return RateLimits(
            limit_requests=0 if requests is None else requests.per_minute,
            remaining_requests=_whole(requests, now),
            reset_requests_s=0.0 if requests is None else requests.reset_s(now),
            limit_tokens=0 if tokens is None else tokens.per_minute,
            remaining_tokens=_whole(tokens, now),
            reset_tokens_s=0.0 if tokens is None else tokens.reset_s(now),
        )


def _changed(bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
    if bucket is None or not per_minute:
        return Bucket(per_minute, now) if per_minute else None
    bucket.change(per_minute, now)
    return bucket


def _whole(bucket: Bucket | None, now: float) -> int:
    return 0 if bucket is None else max(0, math.floor(bucket.level(now) + _ROUNDING))
