"""Who goes first. One small interface, so that policies can be compared; the scheduler knows no order of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable

    from radixserve_runtime.scheduler.config import SchedulerConfig
    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence

#: Compared as a tuple; the smaller goes first.
OrderKey: TypeAlias = tuple[float, ...]

_CLASSES = {"interactive": 0, "standard": 1, "background": 2}


def priority_rank(sequence: Sequence) -> int:
    """0 for the class that goes first. An unknown class counts as standard."""
    return _CLASSES.get(sequence.priority, 1)


class Policy(Protocol):
    """Order of the waiting, and who is preempted."""

    def lane(self, sequence: Sequence) -> Hashable:
        """Sequences of one lane go by arrival as long as their cached prefixes don't differ: within it `key` never falls from the front to the back."""
        ...

    def key(self, sequence: Sequence, num_cached_tokens: int, now_s: float) -> OrderKey:
        """Order of admission, for a waiting sequence of whose tokens so many are in the cache."""
        ...

    def entitlement(self, sequence: Sequence) -> OrderKey:
        """Order among the running: the last is preempted first."""
        ...

    def charge(self, plan: StepPlan) -> None:
        """A step was computed. Policies that count service do so here."""
        ...


class FirstComeFirstServed:
    """By class, then by arrival. Every `ageing_s` of waiting lifts a sequence by one class, so that none starves."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s

    def lane(self, sequence: Sequence) -> Hashable:
        """One lane a class."""
        return priority_rank(sequence)

    def _class(self, sequence: Sequence, now_s: float) -> int:
        return max(0, priority_rank(sequence) - int((now_s - sequence.arrival_s) / self._ageing_s))

    def key(self, sequence: Sequence, num_cached_tokens: int, now_s: float) -> OrderKey:
        """(class, arrival)."""
        return (self._class(sequence, now_s), sequence.arrival_s)

    def entitlement(self, sequence: Sequence) -> OrderKey:
        """The lowest class goes first, then the latest arrival."""
        return (priority_rank(sequence), sequence.arrival_s)

    def charge(self, plan: StepPlan) -> None:
        """Nothing is counted."""


class LongestPrefixMatch(FirstComeFirstServed):
    """By class, then by the longest cached prefix, then by arrival.

    What was preempted, or has waited for `ageing_s`, goes before that by arrival: a sequence that shares nothing isn't
    passed over for ever.
    """

    def key(self, sequence: Sequence, num_cached_tokens: int, now_s: float) -> OrderKey:
        """(class, overdue, cached tokens, arrival)."""
        overdue = sequence.num_preemptions > 0 or now_s - sequence.arrival_s >= self._ageing_s
        return (
            self._class(sequence, now_s),
            0 if overdue else 1,
            0 if overdue else -num_cached_tokens,
            sequence.arrival_s,
        )


def make_policy(config: SchedulerConfig) -> Policy:
    """The policy that the settings name."""
    kind = FirstComeFirstServed if config.policy == "fcfs" else LongestPrefixMatch
    return kind(config.ageing_s)
