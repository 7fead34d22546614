"""Who goes first. One small interface, so that policies can be compared; the rest of the scheduler knows no order of its own.

A policy is two orders. `rank` is the one between tenants, over their virtual counters (accounts.py): what they were
charged, divided by their weight. `key` is the one within a tenant. The scheduler compares (rank, key), and sees to what
is common to all: charging, ageing, preemption (selection.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.sequence import Sequence

#: Compared as a tuple; the smaller goes first.
OrderKey: TypeAlias = tuple[float, ...]

#: Rank of a class that an overdue sequence takes for its admission.
OVERDUE_RANK = -1
BACKGROUND_RANK = 2

_CLASSES = {"interactive": 0, "standard": 1, "background": BACKGROUND_RANK}


def priority_rank(sequence: Sequence) -> int:
    """0 for the class that goes first. An unknown class counts as standard."""
    return _CLASSES.get(sequence.priority, 1)


class Policy(Protocol):
    """Order between tenants and within one."""

    @property
    def by_tenant(self) -> bool:
        """Whether tenants take turns. If not, all sequences are ordered as if they were of one tenant."""
        ...

    @property
    def by_level(self) -> bool:
        """Whether programs are levelled by their attained service."""
        ...

    @property
    def lead(self) -> float:
        """How far a tenant's counter may be ahead of another's that waits, before it yields slots to it."""
        ...

    @property
    def switch_cost(self) -> float:
        """Where the cache has lost a waiting sequence's context: by how many times what computing it again costs its tenant must be further behind, to go before others."""
        ...

    def rank(self, counter: float, is_fresh: bool) -> float:
        """Order between tenants. Never falls while the counter grows and `is_fresh` stands; a fresh tenant has just returned from idleness."""
        ...

    def key(self, class_rank: int, level: int, num_cached_tokens: int, arrival_s: float) -> OrderKey:
        """Order within a tenant: of its class, its program's level and what the cache has of it."""
        ...


class FirstComeFirstServed:
    """By class, then by arrival, whoever sent it."""

    by_tenant = False
    by_level = False
    lead = math.inf
    switch_cost = 0.0

    def rank(self, counter: float, is_fresh: bool) -> float:
        """All are equal."""
        return 0.0

    def key(self, class_rank: int, level: int, num_cached_tokens: int, arrival_s: float) -> OrderKey:
        """(class, arrival)."""
        return (class_rank, arrival_s)


class LongestPrefixMatch(FirstComeFirstServed):
    """By class, then by the longest cached prefix, whoever sent it; then by arrival."""

    def key(self, class_rank: int, level: int, num_cached_tokens: int, arrival_s: float) -> OrderKey:
        """(class, cached tokens, arrival)."""
        return (class_rank, -num_cached_tokens, arrival_s)


class VirtualTokenCounter(FirstComeFirstServed):
    """The tenant with the least counter first (Sheng et al., "Fairness in Serving Large Language Models"); no locality."""

    by_tenant = True

    def __init__(self, quantum: float) -> None:
        self.lead = quantum

    def rank(self, counter: float, is_fresh: bool) -> float:
        """The counter itself."""
        return counter


class DeficitLongestPrefixMatch:
    """Tenants by deficit in turns of a quantum, within a turn the longest prefix (after Cao et al., "Locality-aware Fair Scheduling in LLM Serving").

    A tenant has credit until its counter passes the end of the turn, a multiple of the quantum; when nobody who waits
    has credit, the next turn begins and all get a quantum. So the turn that a tenant is in, counter // quantum, is its
    rank, and there are no refills to be made. Tenants of one turn are ordered as if they were one, so that whoever
    has most in the cache goes on; one that has just returned goes before the others of its turn.
    """

    by_tenant = True
    by_level = True
    #: One part is what it costs, so that after it the tenant is served from the cache for as much again before the others' turn comes.
    switch_cost = 2.0

    def __init__(self, quantum: float) -> None:
        self._quantum = quantum
        self.lead = quantum

    def rank(self, counter: float, is_fresh: bool) -> float:
        """The turn; half a turn less for a fresh tenant."""
        return counter // self._quantum - (0.5 if is_fresh else 0.0)

    def key(self, class_rank: int, level: int, num_cached_tokens: int, arrival_s: float) -> OrderKey:
        """(class, level, cached tokens, arrival)."""
        return (class_rank, level, -num_cached_tokens, arrival_s)


def make_policy(config: SchedulerConfig) -> Policy:
    """The policy that the settings name."""
    match config.policy:
        case "fcfs":
            return FirstComeFirstServed()
        case "lpm":
            return LongestPrefixMatch()
        case "vtc":
            return VirtualTokenCounter(config.quantum)
        case "dlpm":
            return DeficitLongestPrefixMatch(config.quantum)
