"""Ends what goes beyond its program's budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.outcomes import Outcomes
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.programs.services import Services


class Enforcement:
    """Looks at budgets once a turn, when all that the runtime said has been taken in: what it has finished by then is done."""

    def __init__(self, services: Services, outcomes: Outcomes) -> None:
        self._services = services
        self._outcomes = outcomes

    def tick(self, now: float) -> None:
        """End what has no tokens left, and what has no time left. What waits behind it is refused as its turn comes."""
        watch = self._services.budgets
        while watch.spent:
            program, _ = watch.spent.popitem()
            self._out_of_tokens(program)
        for program in watch.take_overdue(now):
            self._out_of_time(program, now)

    def _out_of_tokens(self, program: Program) -> None:
        for task in program.budget.would_go_on():
            self._outcomes.fail(task.branch, task.op, program.budget.out_of_tokens(task.op))
        if program.budget.is_over:
            self._revoke_leases(program)

    def _out_of_time(self, program: Program, now: float) -> None:
        program.budget.out_of_time(now)
        for branch in list(program.branches.values()):
            self._outcomes.cancel(branch, program.budget.error)
        self._revoke_leases(program)

    def _revoke_leases(self, program: Program) -> None:
        for branch in program.branches.values():
            self._services.leases.revoke(branch)
