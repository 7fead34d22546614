"""Service in charge units, counted from outside the scheduler and the same for every policy (docs/fairness.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_runtime.scheduler.config import ChargeWeights
    from radixserve_runtime.scheduler.plan import StepPlan
    from radixserve_runtime.scheduler.sequence import Sequence


class Charges:
    """What each tenant is charged for a step. What is computed again after a preemption is free."""

    def __init__(self, weights: ChargeWeights) -> None:
        self._weights = weights
        self._frontier: dict[Sequence, int] = {}
        """Up to where a sequence has been charged."""

    def of_step(self, plan: StepPlan) -> dict[str, float]:
        """By tenant: tokens that were computed, and the context that its sequences of the step hold."""
        weights, charges = self._weights, dict[str, float]()
        for chunk in plan.chunks:
            sequence, end = chunk.sequence, chunk.end
            start = max(chunk.start, self._frontier.get(sequence, 0))
            if end <= start:
                continue
            self._frontier[sequence] = end
            num_prompt = max(0, min(end, sequence.num_prompt_tokens) - start)
            charge = weights.prefill * num_prompt + weights.decode * (end - start - num_prompt) + weights.kv * end / 1000
            charges[sequence.tenant] = charges.get(sequence.tenant, 0.0) + charge
        return charges

    def ended(self, sequence: Sequence) -> None:
        """It won't be in a step any more."""
        self._frontier.pop(sequence, None)
