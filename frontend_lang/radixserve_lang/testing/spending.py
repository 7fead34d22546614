"""Budgets of programs without a model: words stand for tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from radixserve_lang.testing.branches import words
from radixserve_tokenizer.protocol import Done, Failed, Gen

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_lang.testing.branches import Program
    from radixserve_lang.testing.desk import Outcome
    from radixserve_lang.testing.questions import Question
    from radixserve_tokenizer.protocol import Budget


class Spending:
    """What programs have used of their budgets."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}
        self._tokens: dict[int, int] = {}
        self._calls: dict[int, int] = {}

    def refusal(self, asked: Question) -> Failed | None:
        """Why this op may not run any more."""
        since = self._since.setdefault(asked.program, self._clock())
        budget = asked.budget
        if budget is None:
            return None
        if budget.seconds is not None and self._clock() - since > budget.seconds:
            return _exhausted(f"it may run for {budget.seconds:g} s")
        return self._over(asked.program, budget, at_least=1)

    def spend(self, asked: Question, outcome: Outcome) -> Outcome:
        """Charge an outcome; it fails where it goes beyond the budget."""
        budget = asked.budget
        if budget is None or not isinstance(outcome, Done) or not isinstance(asked.op, Gen):
            return outcome
        pieces = words(outcome.value)
        before = self._tokens.get(asked.program, 0)
        self._tokens[asked.program] = before + len(pieces)
        self._calls[asked.program] = self._calls.get(asked.program, 0) + len(outcome.calls)
        allowed = len(pieces) if budget.tokens is None else max(0, budget.tokens - before)
        over = self._over(asked.program, budget, at_least=0)
        return outcome if over is None else msgspec.structs.replace(over, partial="".join(pieces[:allowed]))

    def forget(self, program: Program) -> None:
        """It has ended."""
        for table in (self._since, self._tokens, self._calls):
            table.pop(program.opening.program, None)

    def _over(self, program: int, budget: Budget, *, at_least: int) -> Failed | None:
        if budget.tokens is not None and self._tokens.get(program, 0) + at_least > budget.tokens:
            return _exhausted(f"it may generate {budget.tokens} tokens in all")
        if budget.tool_calls is not None and self._calls.get(program, 0) > budget.tool_calls:
            return _exhausted(f"it may make {budget.tool_calls} tool calls in all")
        return None


def _exhausted(why: str) -> Failed:
    return Failed(program=0, op=0, code="budget_exhausted", message=f"budget exhausted: {why}", status=400, param="budget")
