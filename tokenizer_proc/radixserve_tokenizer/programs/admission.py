"""Who may start a program now: the tenant's limits and the engine's, all known before anything of the program is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.needs import Needs
    from radixserve_tokenizer.tenants.identity import Tenant
    from radixserve_tokenizer.tenants.slots import Slots, Ticket

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_SMOOTHING = 0.1
_MAX_GAP_S = 5.0
_EXPECT_S = 1.0
_DEFAULT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a program may not start; `status` is an HTTP status."""

    status: int
    code: str
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Expected:
    """A program that was admitted, and whose first generation has not begun."""

    until: float
    tenant: Tenant
    uncached_tokens: int


class Admission:
    """Limits on programs and on generations that wait for their first token. Generations of an admitted program are only counted.

    A tenant's limits come first (429: it is the tenant that has to wait), then the engine's (503). Generations that a
    tenant's own limit holds back are in its queue, not in the engine's: they keep nobody else out.

    A program that was just admitted counts as one that waits, until its first generation begins or `_EXPECT_S` have passed:
    where many clients send `Open` before their ops, the queue would else be empty for all of them.
    """

    def __init__(self, *, max_programs: int, max_queued: int, max_queued_tokens: int, slots: Slots) -> None:
        """`max_queued_tokens` of 0 is no limit."""
        self._max_programs = max_programs
        self._max_queued = max_queued
        self._max_queued_tokens = max_queued_tokens
        self._slots = slots
        self._first_token_gap_s = 0.1
        self._last_first_token: float | None = None
        self._expected: dict[int, _Expected] = {}
        """Programs without a generation so far; in the order in which they cease to count."""
        self._num_uncached_tokens = 0
        self.num_programs = 0
        self.num_undecided = 0
        self.num_queued = 0
        """Generations that wait for their first token."""
        self.num_refused = 0

    @property
    def num_queued_uncached_tokens(self) -> int:
        """Of the prompts in the engine's queue, about how many tokens have to be computed."""
        return self._num_uncached_tokens - self._slots.num_held_uncached_tokens

    def wait(self, tenant: Tenant) -> None:
        """A program of this tenant is to be admitted or refused later; until then it takes the place of one that is open."""
        self.num_undecided += 1
        tenant.num_undecided += 1

    def decided(self, tenant: Tenant) -> None:
        """It waits no more."""
        self.num_undecided -= 1
        tenant.num_undecided -= 1

    def needs_tokens(self, tenant: Tenant) -> bool:
        """Whether admission depends on how long a program's prompts are."""
        return tenant.quota.counts_tokens or self._max_queued_tokens > 0

    def refusal(self, tenant: Tenant, needs: Needs, now: float) -> Refusal | None:
        """Why a program of this tenant may not start now; None if it may. Changes nothing."""
        return self._over_tenants_limits(tenant, needs, now) or self._over_engines_limits(needs, now)

    def admit(self, program: int, tenant: Tenant, needs: Needs, now: float) -> None:
        """A program starts, and is charged what it needs at once. `program` is its number in this process."""
        self.num_programs += 1
        self._expected[program] = _Expected(now + _EXPECT_S, tenant, needs.uncached_tokens)
        self._num_uncached_tokens += needs.uncached_tokens
        tenant.num_programs += 1
        tenant.num_expected += 1
        tenant.quota.admit(needs.tokens, now)
        tenant.account.admitted(now)

    def refused(self, tenant: Tenant | None, now: float) -> None:
        """A program was refused; None: of nobody known."""
        self.num_refused += 1
        if tenant is not None:
            tenant.account.refused(now)

    def close(self, program: int, tenant: Tenant) -> None:
        """An admitted program ended."""
        self.num_programs -= 1
        tenant.num_programs -= 1
        self._came(program)

    def enqueue(self, program: int, ticket: Ticket) -> None:
        """A generation of this program begins to wait for its first token."""
        self.num_queued += 1
        self._num_uncached_tokens += ticket.uncached_tokens
        ticket.tenant.num_queued += 1
        self._came(program)

    def dequeue(self, ticket: Ticket, now: float, *, first_token: bool) -> None:
        """A generation waits no more: its first token came, or it ended without one."""
        self.num_queued -= 1
        self._num_uncached_tokens -= ticket.uncached_tokens
        ticket.tenant.num_queued -= 1
        if first_token:
            if self._last_first_token is not None:
                gap_s = min(now - self._last_first_token, _MAX_GAP_S)  # an idle night says nothing about the next queue
                self._first_token_gap_s += _SMOOTHING * (gap_s - self._first_token_gap_s)
            self._last_first_token = now

    # ---- limits ---------------------------------------------------------------------------------------------------

    def _over_tenants_limits(self, tenant: Tenant, needs: Needs, now: float) -> Refusal | None:
        wait_s, what = tenant.quota.wait_s(needs.tokens, now)
        if wait_s > 0:
            message = f"the limit on {what} a minute is reached; try again in {wait_s:.3g} s"
            return Refusal(429, "rate_limit_exceeded", message, wait_s)
        most = self._most_programs(tenant)
        if most and tenant.num_programs + tenant.num_undecided >= most:
            message = f"{most} of your programs are open, idle ones too (limit {most}): close some or try again later"
            return Refusal(429, "too_many_programs", message, _MIN_RETRY_S)
        self._forget_expected(now)
        most, waiting = tenant.config.max_queued, tenant.num_queued + tenant.num_expected
        if most and waiting >= most:
            message = f"{waiting} of your generations wait for their first token (limit {most}); try again later"
            return Refusal(429, "rate_limit_exceeded", message, self._retry_after_s(waiting))
        return None

    def _most_programs(self, tenant: Tenant) -> int:
        """Without a limit of its own a tenant may have a part of the engine's, so that others find room. 0: no limit."""
        if not tenant.name:
            return 0  # everybody
        return tenant.config.max_programs or max(1, int(self._max_programs * _DEFAULT_SHARE))

    def _over_engines_limits(self, needs: Needs, now: float) -> Refusal | None:
        if self.num_programs + self.num_undecided >= self._max_programs:
            message = f"the server already runs {self._max_programs} programs; close some or try again later"
            return Refusal(503, "overloaded", message, _MIN_RETRY_S)
        waiting = self.num_queued - self._slots.num_held + len(self._expected)
        if waiting >= self._max_queued:
            message = f"{waiting} generations wait for their first token (limit {self._max_queued}); try again later"
            return Refusal(503, "overloaded", message, self._retry_after_s(waiting))
        tokens = self.num_queued_uncached_tokens
        # A prompt beyond the limit would never run if it did not run alone.
        if self._max_queued_tokens and tokens and tokens + needs.uncached_tokens > self._max_queued_tokens:
            message = f"{tokens} prompt tokens wait to be computed (limit {self._max_queued_tokens}); try again later"
            return Refusal(503, "overloaded", message, self._retry_after_s(waiting))
        return None

    def _retry_after_s(self, waiting: int) -> float:
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, waiting * self._first_token_gap_s))

    # ---- programs without a generation so far ---------------------------------------------------------------------

    def _came(self, program: int) -> None:
        expected = self._expected.pop(program, None)
        if expected is not None:
            self._num_uncached_tokens -= expected.uncached_tokens
            expected.tenant.num_expected -= 1

    def _forget_expected(self, now: float) -> None:
        while self._expected:
            program, expected = next(iter(self._expected.items()))
            if expected.until > now:
                return
            self._came(program)
