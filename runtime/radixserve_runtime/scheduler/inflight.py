"""In-flight sharing: sequences that wait for a prefix which another one is computing right now.

A waiting sequence is deferred while a running one of its namespace, still in its prefill, is about to compute at least
`min_gain_tokens` that both share and the cache does not have. It holds nothing meanwhile. Nothing is remembered: the
leaders are looked up again in every step, so a leader that finishes, is cancelled or is preempted releases whoever
waited for it, and there is always a leader at work while somebody is deferred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_runtime.cache.node import TokenRun
    from radixserve_runtime.cache.radix import Namespace
    from radixserve_runtime.scheduler.sequence import Sequence


class Leaders:
    """The running sequences that are in their prefill, in one step."""

    def __init__(self, min_gain_tokens: int) -> None:
        self._min_gain_tokens = min_gain_tokens
        self._leaders: dict[Namespace, list[tuple[Sequence, TokenRun]]] = {}

    def add(self, leader: Sequence, tokens: TokenRun) -> None:
        """A sequence is in its prefill."""
        self._leaders.setdefault(leader.namespace, []).append((leader, tokens))

    def leader_of(self, sequence: Sequence, tokens: TokenRun, num_cached_tokens: int, limit: int) -> Sequence | None:
        """The leader that is going to compute what `sequence` needs next: compares at most one slice with each leader."""
        end = num_cached_tokens + self._min_gain_tokens
        if end > limit:
            return None
        mine = tokens[:end]
        for leader, theirs in self._leaders.get(sequence.namespace, ()):
            if leader.num_computed < end and len(theirs) >= end and theirs[end - 1] == tokens[end - 1] and theirs[:end] == mine:
                return leader
        return None
