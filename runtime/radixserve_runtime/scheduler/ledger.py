"""Charges work to tenants and programs as it is planned, so that within a step too the next is chosen by what was just given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_runtime.protocol import TenantStats

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.accounts import Accounts
    from radixserve_runtime.scheduler.config import ChargeWeights
    from radixserve_runtime.scheduler.sequence import Sequence
    from radixserve_runtime.scheduler.state import SchedulerState


class Ledger:
    """Keeps the accounts of what the scheduler's sequences are given (docs/fairness.md)."""

    def __init__(self, state: SchedulerState, accounts: Accounts, weights: ChargeWeights) -> None:
        self._state = state
        self._accounts = accounts
        self._weights = weights

    def charge(self, sequence: Sequence, end: int, now_s: float) -> None:
        """A sequence is going to be computed up to token `end`. It is charged for what is new, and for the context it holds.

        What is computed again after a preemption, and the KV held meanwhile, isn't charged: it is not the tenant's doing.
        """
        tracked = self._state.tracked[sequence]
        tracked.last_chunk_s = now_s
        tracked.tenant.num_computed_tokens += end - sequence.num_computed
        self._accounts.num_computed_tokens += end - sequence.num_computed
        start = max(sequence.num_computed, tracked.frontier)
        if end <= start:
            return
        tracked.frontier = end
        num_prompt = max(0, min(end, sequence.num_prompt_tokens) - start)
        units = (
            self._weights.prefill * num_prompt
            + self._weights.decode * (end - start - num_prompt)
            + self._weights.kv * end / 1000.0
        )
        if self._accounts.charge(tracked.tenant, tracked.program, units):
            self._state.waiting.relevel(tracked.tenant, tracked.program)

    def hold(self, duration_s: float) -> None:
        """A step took so long, in which every running sequence held its KV."""
        for sequence in self._state.running:
            token_s = sequence.num_computed * duration_s
            sequence.kv_token_s += token_s
            self._state.tracked[sequence].tenant.kv_token_s += token_s

    def tenants(self) -> dict[str, TenantStats]:
        """A copy of all accounts that are remembered. O(tenants)."""
        return {
            tenant.name: TenantStats(
                num_running=tenant.num_running,
                num_waiting=tenant.num_waiting,
                num_waiting_uncached_tokens=tenant.num_waiting_uncached_tokens,
                charge=tenant.charge,
                kv_token_s=tenant.kv_token_s,
            )
            for tenant in self._accounts.tenants()
        }
