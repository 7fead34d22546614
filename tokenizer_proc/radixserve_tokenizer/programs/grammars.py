"""Compiled grammars: each constraint is compiled once, however many branches ask for it, and kept while there is room."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from radixserve_runtime.protocol import GrammarRef
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
        """Equal for equal grammars."""
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

    def submit(self, ticket: int, constraint: Constraint | Composite) -> None:
        """Start; the answer comes out of `receive` later."""
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


class GrammarDesk:
    """Takes orders for grammars and calls back when they are there."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._ready: OrderedDict[tuple[str, str], GrammarRef] = OrderedDict()
        self._ready_bytes = 0
        self._tickets: dict[int, tuple[str, str]] = {}
        self._waiting: dict[tuple[str, str], dict[object, Callable[[Result], None]]] = {}
        self._next_ticket = 0
        self._next_tick = 0.0

    def order(self, constraint: Constraint | Composite, who: object, then: Callable[[Result], None]) -> GrammarRef | None:
        """The grammar if it is there already; else None, and `then` is called once with the result."""
        key = (constraint.kind, constraint.source)
        found = self._ready.get(key)
        if found is not None:
            self._ready.move_to_end(key)
            return found
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = {}
            self._next_ticket += 1
            self._tickets[self._next_ticket] = key
            self._compiler.submit(self._next_ticket, constraint)
        waiting[who] = then
        return None

    def cancel(self, constraint: Constraint | Composite, who: object) -> None:
        """`who` does not want it any more; what nobody wants is not compiled."""
        key = (constraint.kind, constraint.source)
        waiting = self._waiting.get(key)
        if waiting is None:
            return
        waiting.pop(who, None)
        if not waiting:
            del self._waiting[key]
            for ticket in [ticket for ticket, wanted in self._tickets.items() if wanted == key]:
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
            key = self._tickets.pop(answer.ticket, None)
            if key is None:
                logger.error("the grammar compiler answered ticket %d, which nobody holds", answer.ticket)
                continue
            result: Result
            if isinstance(answer, FailedAnswer):
                result = _refusal(answer)
            else:
                result = GrammarRef(key=answer.key, payload=answer.payload)
                self._keep(key, result)
            for then in list(self._waiting.pop(key, {}).values()):
                then(result)

    def _keep(self, key: tuple[str, str], grammar: GrammarRef) -> None:
        self._ready[key] = grammar
        self._ready_bytes += len(grammar.payload)
        while self._ready_bytes > _MAX_CACHE_BYTES and len(self._ready) > 1:
            _, oldest = self._ready.popitem(last=False)
            self._ready_bytes -= len(oldest.payload)


def _refusal(answer: FailedAnswer) -> OpError:
    if answer.retryable:
        return OpError(answer.message, code="grammar_unavailable", status=503, retryable=True)
    return OpError(answer.message, code="invalid_grammar", param="constraint")
