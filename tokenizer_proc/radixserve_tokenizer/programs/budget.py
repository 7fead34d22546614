"""What a whole program may use: counted as it is used, with a clear end for what goes beyond."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError

if TYPE_CHECKING:
    from radixserve_runtime import protocol as runtime
    from radixserve_tokenizer.programs.generation import Generation
    from radixserve_tokenizer.programs.program import Program

_NO_LIMITS = wire.Budget()


def check_budget(limits: wire.Budget) -> None:
    """Raise `OpError` for a budget that means nothing."""
    if limits.seconds is not None and not 0 < limits.seconds < math.inf:
        raise OpError(f"budget.seconds must be above 0, not {limits.seconds}", param="budget")
    for name in ("tokens", "tool_calls"):
        value = getattr(limits, name)
        if value is not None and value < 0:
            raise OpError(f"budget.{name} must be 0 or more, not {value}", param="budget")


@dataclass(slots=True)
class _Running:
    """A generation that has begun."""

    is_clipped: bool
    """It may draw fewer tokens than its op asks for: when it has drawn them, it is the budget that ends it."""
    num_tokens: int = 0


class ProgramBudget:
    """One program's budget and what has been used of it.

    Tokens count as they arrive, each once, whatever becomes of their generation. A generation is given no more than what is
    left when it begins; where branches run side by side, together they may draw one step's tokens too many, which end them.
    """

    __slots__ = ("_over", "_running", "_since", "limits", "num_calls", "num_tokens")

    def __init__(self, limits: wire.Budget | None = None) -> None:
        self.limits = limits or _NO_LIMITS
        self.num_tokens = 0
        """Output tokens so far."""
        self.num_calls = 0
        """Tool calls so far."""
        self._running: dict[Generation, _Running] = {}
        self._since: float | None = None
        self._over = ""

    @property
    def is_over(self) -> bool:
        """Something went beyond it: no later op is carried out."""
        return bool(self._over)

    @property
    def tokens_left(self) -> int | None:
        """None: no limit."""
        return None if self.limits.tokens is None else max(0, self.limits.tokens - self.num_tokens)

    # ---- generations ----------------------------------------------------------------------------------------------

    def clip(self, sampling: runtime.Sampling) -> runtime.Sampling:
        """`sampling` with no more tokens than are left."""
        left = self.tokens_left
        if left is None or sampling.max_tokens <= left:
            return sampling
        return msgspec.structs.replace(sampling, max_tokens=left, min_tokens=min(sampling.min_tokens, left))

    def begins(self, task: Generation, asked_tokens: int) -> None:
        """A generation begins, whose op allows so many tokens."""
        if self.limits.tokens is not None:
            self._running[task] = _Running(task.sampling.max_tokens < asked_tokens)

    def begins_again(self, task: Generation) -> None:
        """What it drew was lost with the runtime, and will be drawn again."""
        running = self._running.get(task)
        if running is not None:
            self.num_tokens -= running.num_tokens
            running.num_tokens = 0

    def ended(self, task: Generation) -> None:
        """It draws no more."""
        self._running.pop(task, None)

    def feed(self, task: Generation, count: int) -> bool:
        """Tokens have come; whether that was the last of the budget, so that nothing may go on."""
        self.num_tokens += count
        running = self._running.get(task)
        if running is None or self.limits.tokens is None:
            return False
        running.num_tokens += count
        return self.num_tokens >= self.limits.tokens

    def would_go_on(self) -> list[Generation]:
        """Generations that would draw another token, were they let."""
        return [
            task for task, running in self._running.items() if running.is_clipped or running.num_tokens < task.sampling.max_tokens
        ]

    # ---- verdicts -------------------------------------------------------------------------------------------------

    def refuses(self, op: wire.Op) -> OpError | None:
        """Why an op may not begin; None if it may. Ops that use nothing always may."""
        if isinstance(op, wire.Gen) and not self._over:
            if self.tokens_left == 0 and op.sampling.max_tokens != 0:
                self._over = self._tokens_used()
            elif self._no_calls_left and op.tool_use is not None and op.tool_use.mode == "required":
                self._over = self._calls_used()
        costs = isinstance(op, wire.Gen | wire.Select | wire.Score | wire.Lease)
        return self.error(op) if costs and self._over else None

    def ended_by_it(self, task: Generation, reason: str) -> OpError | None:
        """The error for a generation that has drawn all it was given, which was less than its op allows."""
        running = self._running.get(task)
        if running is None or not running.is_clipped or reason != "length":
            return None
        return self.out_of_tokens(task.op)

    def out_of_tokens(self, op: wire.Op) -> OpError:
        """Its tokens are used up, and this op would have needed more."""
        self._over = self._over or self._tokens_used()
        return self.error(op)

    def out_of_time(self, now: float) -> None:
        """Its time is over."""
        ran_s = now - (now if self._since is None else self._since)
        self._over = self._over or f"the program may run for {self.limits.seconds:g} s and has run for {ran_s:.3g} s"

    def count_calls(self, count: int, op: wire.Op) -> OpError | None:
        """Tool calls in the value of an op that has just ended; the error if there are more of them than are left."""
        most = self.limits.tool_calls
        if not count or most is None:
            self.num_calls += count
            return None
        if self.num_calls + count > most:
            self._over = self._over or f"{self._calls_used()}; this generation has {count}"
            return self.error(op)
        self.num_calls += count
        return None

    def error(self, op: wire.Op) -> OpError:
        """What an op that goes beyond the budget ends with."""
        where = getattr(op, "where", "")
        place = f"op {op.op} ({where})" if where else f"op {op.op}"
        return OpError(f"budget exhausted at {place}: {self._over}", code="budget_exhausted", param="budget")

    # ---- time -----------------------------------------------------------------------------------------------------

    def start(self, now: float) -> float | None:
        """The program is admitted; when its time will be over, if ever."""
        self._since = now
        return None if self.limits.seconds is None else now + self.limits.seconds

    @property
    def _no_calls_left(self) -> bool:
        return self.limits.tool_calls is not None and self.num_calls >= self.limits.tool_calls

    def _tokens_used(self) -> str:
        return f"the program may use {self.limits.tokens} output tokens and has used {self.num_tokens}"

    def _calls_used(self) -> str:
        return f"the program may make {self.limits.tool_calls} tool calls and has made {self.num_calls}"


@dataclass(slots=True)
class BudgetWatch:
    """Programs that have to be looked at: those without tokens left, and those whose time will be over."""

    spent: dict[Program, None] = field(default_factory=dict["Program", None])
    deadlines: dict[Program, float] = field(default_factory=dict["Program", float])
    _next: float = math.inf

    def admitted(self, program: Program, now: float) -> None:
        """A program's time begins."""
        deadline = program.budget.start(now)
        if deadline is not None:
            self.deadlines[program] = deadline
            self._next = min(self._next, deadline)

    def forget(self, program: Program) -> None:
        """A program has ended."""
        self.spent.pop(program, None)
        self.deadlines.pop(program, None)

    def take_overdue(self, now: float) -> list[Program]:
        """Programs whose time is over; each is named once."""
        if now < self._next:
            return []
        overdue = [program for program, deadline in self.deadlines.items() if deadline <= now]
        for program in overdue:
            del self.deadlines[program]
        self._next = min(self.deadlines.values(), default=math.inf)
        return overdue
