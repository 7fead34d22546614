"""Compiled grammars: each tenant's constraint is compiled once, however many branches ask for it, and kept while there is room."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from radixserve_runtime.protocol import GrammarRef
from radixserve_tokenizer.grammar.cache import SharedRoom
from radixserve_tokenizer.programs.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from radixserve_tokenizer.grammar.composite import Composite
    from radixserve_tokenizer.protocol import Constraint

logger = logging.getLogger(__name__)

_MAX_CACHE_BYTES = 64 << 20
_TICK_S = 0.1

Result: TypeAlias = "GrammarRef | OpError"


class CompiledAnswer(Protocol):
    """A grammar: `payload` is what the runtime loads, `key` names it."""

    @property
    def ticket(self) -> int:
        """Of the order."""
        ...

    @property
    def key(self) -> str:
        """Equal for equal grammars of one tenant, and no other tenant's."""
        ...

    @property
    def payload(self) -> bytes:
        """The serialised form."""
        ...


@runtime_checkable
class FailedAnswer(Protocol):
    """Why there is no grammar."""

    @property
    def ticket(self) -> int:
        """Of the order."""
        ...

    @property
    def message(self) -> str:
        """For the client."""
        ...

    @property
    def retryable(self) -> bool:
        """Nothing is wrong with the constraint: the compiler can't be had now."""
        ...


class Compiler(Protocol):
    """What compiles constraints beside this process's loop."""

    def submit(self, ticket: int, constraint: Constraint | Composite, tenant: str) -> None:
        """Start, as a part of this tenant's work; the answer comes out of `receive` later."""
        ...

    def cancel(self, ticket: int) -> None:
        """Nobody wants this answer any more."""
        ...

    def receive(self) -> Sequence[CompiledAnswer | FailedAnswer]:
        """Answers that are there; never waits."""
        ...

    def tick(self, now: float) -> None:
        """Enforce time limits."""
        ...


class _Wanted(NamedTuple):
    """What is looked up: a tenant finds its own grammars alone."""

    tenant: str
    kind: str
    source: str

    @property
    def key(self) -> str:
        """Among the tenant's. Kinds have no NUL."""
        return f"{self.kind}\0{self.source}"


class GrammarDesk:
    """Takes orders for grammars and calls back when they are there."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._ready: SharedRoom[GrammarRef] = SharedRoom(_MAX_CACHE_BYTES)
        self._tickets: dict[int, _Wanted] = {}
        self._waiting: dict[_Wanted, dict[object, Callable[[Result], None]]] = {}
        self._next_ticket = 0
        self._next_tick = 0.0

    def order(
        self, constraint: Constraint | Composite, tenant: str, who: object, then: Callable[[Result], None]
    ) -> GrammarRef | None:
        """The tenant's grammar if it is there already; else None, and `then` is called once with the result."""
        wanted = _Wanted(tenant, constraint.kind, constraint.source)
        found = self._ready.get(tenant, wanted.key)
        if found is not None:
            return found
        waiting = self._waiting.get(wanted)
        if waiting is None:
            waiting = self._waiting[wanted] = {}
            self._next_ticket += 1
            self._tickets[self._next_ticket] = wanted
            self._compiler.submit(self._next_ticket, constraint, tenant)
        waiting[who] = then
        return None

    def cancel(self, constraint: Constraint | Composite, tenant: str, who: object) -> None:
        """`who` does not want it any more; what nobody wants is not compiled."""
        wanted = _Wanted(tenant, constraint.kind, constraint.source)
        waiting = self._waiting.get(wanted)
        if waiting is None:
            return
        waiting.pop(who, None)
        if not waiting:
            del self._waiting[wanted]
            for ticket in [ticket for ticket, other in self._tickets.items() if other == wanted]:
                del self._tickets[ticket]
                self._compiler.cancel(ticket)

    def poll(self, now: float, *, has_answers: bool) -> None:
        """Take the compiler's answers in and call back; keep its time limits now and then."""
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            self._compiler.tick(now)
            has_answers = True
        if not has_answers:
            return
        for answer in self._compiler.receive():
            wanted = self._tickets.pop(answer.ticket, None)
            if wanted is None:
                logger.error("the grammar compiler answered ticket %d, which nobody holds", answer.ticket)
                continue
            result: Result
            if isinstance(answer, FailedAnswer):
                result = _refusal(answer)
            else:
                result = GrammarRef(key=answer.key, payload=answer.payload)
                self._ready.put(wanted.tenant, wanted.key, result, len(answer.payload) + len(wanted.source) + 1)
            for then in list(self._waiting.pop(wanted, {}).values()):
                then(result)


def _refusal(answer: FailedAnswer) -> OpError:
    if answer.retryable:
        return OpError(answer.message, code="grammar_unavailable", status=503, retryable=True)
    return OpError(answer.message, code="invalid_grammar", param="constraint")
