"""How many of a tenant's generations the runtime is given at a time; the others are held back here, and none is refused."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from radixserve_tokenizer.tenants.identity import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_runtime.protocol import Usage
    from radixserve_tokenizer.protocol import Priority
    from radixserve_tokenizer.tenants.identity import Tenant

State: TypeAlias = Literal["new", "held", "running", "left"]

#: A generation that has been held back for so long counts as one class higher.
_AGEING_S = 10.0
_LOOK_S = 0.05


@dataclass(slots=True, eq=False)
class Ticket:
    """What one generation or scoring means to its tenant's quota, from when it begins until its cost is known."""

    tenant: Tenant
    priority: Priority
    tokens: int
    """Estimate: prompt and output."""
    uncached_tokens: int
    """Of the prompt, about how many tokens have to be computed."""
    is_paid: bool
    """The estimate has been taken from the bucket."""
    num_unanswered: int = 0
    """Requests that nobody wants any more, and whose cost the runtime has yet to tell."""
    state: State = "new"
    held_s: float = 0.0
    """How long it was held back."""
    _since: float = 0.0
    _is_charged: bool = False

    def settle(self, usage: Usage | None, now: float) -> None:
        """Put the estimate back, and take what was used. Called for each answer of the runtime; None: nothing was used."""
        back = self.tokens if self.is_paid else 0
        self.is_paid, self.tokens = True, 0
        used = 0 if usage is None else usage.prompt_tokens + usage.output_tokens
        self.tenant.quota.take_tokens(used - back, now)
        if usage is not None:
            self.tenant.account.used(usage, 0.0 if self._is_charged else self.held_s, now)
            self._is_charged = True

    def hold(self, now: float) -> None:
        """It has to wait."""
        self.state, self._since = "held", now

    def run(self, now: float) -> None:
        """It may go on to the runtime."""
        if self.state == "held":
            self.held_s = now - self._since
        self.state = "running"
        if not self.is_paid:
            self.is_paid = True
            self.tenant.quota.take_tokens(self.tokens, now)

    def rank(self, now: float) -> tuple[int, float]:
        """Less is sooner: the class, with ageing, then who came first."""
        return CLASSES.index(self.priority) - int((now - self._since) / _AGEING_S), self._since


_Line: TypeAlias = "OrderedDict[Ticket, Callable[[], None]]"


class Slots:
    """Lets a tenant's generations through, at most `max_running` at a time and none beyond what is paid for while it is in debt."""

    def __init__(self) -> None:
        self._held: dict[Tenant, dict[Priority, _Line]] = {}
        self._changed: dict[Tenant, None] = {}
        """Tenants that have got room since `start_waiting` last looked."""
        self._look_at = 0.0
        self.num_held = 0
        self.num_held_uncached_tokens = 0

    def enter(self, ticket: Ticket, start: Callable[[], None], now: float) -> None:
        """Call `start` now, or keep it for `start_waiting`."""
        if ticket.tenant not in self._held and self._has_room(ticket, now):
            self._run(ticket, now)
            start()
            return
        lines = self._held.setdefault(ticket.tenant, {each: OrderedDict() for each in CLASSES})
        lines[ticket.priority][ticket] = start
        ticket.hold(now)
        self.num_held += 1
        self.num_held_uncached_tokens += ticket.uncached_tokens

    def leave(self, ticket: Ticket) -> None:
        """It has ended, or nobody wants it any more."""
        state, ticket.state = ticket.state, "left"
        if state == "running":
            ticket.tenant.num_running -= 1
            if ticket.tenant in self._held:
                self._changed[ticket.tenant] = None
        elif state == "held":
            self._forget(ticket)

    def look_again(self) -> None:
        """Limits have changed: whoever is held back may have room now."""
        self._changed.update(dict.fromkeys(self._held))

    def start_waiting(self, now: float) -> bool:
        """Let through what has room now; whether anything did. Call it after `leave`, and as time passes."""
        started = False
        due = list(self._changed)
        if now >= self._look_at:  # debts are paid off by time alone
            self._look_at = now + _LOOK_S
            due.extend(tenant for tenant in self._held if tenant.quota.counts_tokens)
        self._changed.clear()
        for tenant in due:
            while (ticket := self._next(tenant, now)) is not None and self._has_room(ticket, now):
                start = self._held[tenant][ticket.priority][ticket]
                self._forget(ticket)
                self._run(ticket, now)
                start()
                started = True
        return started

    def _run(self, ticket: Ticket, now: float) -> None:
        ticket.tenant.num_running += 1
        ticket.run(now)

    @staticmethod
    def _has_room(ticket: Ticket, now: float) -> bool:
        tenant = ticket.tenant
        most = tenant.config.max_running
        return (not most or tenant.num_running < most) and (ticket.is_paid or tenant.quota.debt_s(now) <= 0)

    def _next(self, tenant: Tenant, now: float) -> Ticket | None:
        heads = [next(iter(line)) for line in self._held.get(tenant, {}).values() if line]
        return min(heads, key=lambda ticket: ticket.rank(now), default=None)

    def _forget(self, ticket: Ticket) -> None:
        lines = self._held[ticket.tenant]
        del lines[ticket.priority][ticket]
        self.num_held -= 1
        self.num_held_uncached_tokens -= ticket.uncached_tokens
        if not any(lines.values()):
            del self._held[ticket.tenant]
