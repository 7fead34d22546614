"""A program: its branches, its variables and what its client can still take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.budget import ProgramBudget
from radixserve_tokenizer.programs.generation import Generation

if TYPE_CHECKING:
    from radixserve_runtime.protocol import Owner
    from radixserve_tokenizer.programs.branch import Branch, Poison
    from radixserve_tokenizer.programs.clients import Client
    from radixserve_tokenizer.programs.journal import Journal
    from radixserve_tokenizer.programs.retelling import Retelling
    from radixserve_tokenizer.protocol import Event
    from radixserve_tokenizer.tenants.identity import Tenant

MAX_CREDITS = 1 << 31

E = TypeVar("E", bound=wire.Message)


@dataclass(slots=True)
class Variable:
    """The value of an op, once it exists. `poison` says why it never will."""

    text: str | None = None
    poison: Poison | None = None
    waiters: list[Branch] = field(default_factory=list["Branch"])

    @property
    def is_pending(self) -> bool:
        """Neither value nor failure yet."""
        return self.text is None and self.poison is None


@dataclass(slots=True, eq=False)
class Program:
    """One program of one client."""

    client: Client
    number: int
    """The client's number for it."""
    uid: int
    """Its number in this process."""
    seed: int
    tenant: Tenant
    owner: Owner
    credits: int
    budget: ProgramBudget = field(default_factory=ProgramBudget)
    branches: dict[int, Branch] = field(default_factory=dict[int, "Branch"])
    dropped: set[int] = field(default_factory=set[int])
    """Numbers of branches that are gone, so that they aren't used twice."""
    variables: dict[int, Variable] = field(default_factory=dict[int, Variable])
    streams: dict[Generation, None] = field(default_factory=dict["Generation", None])
    """Generations with output that no `Delta` carries yet, in the order in which they got it."""
    last_op: int = -1
    last_resent: int = -1
    """Ops up to this one may come a second time, from a client that has taken the program up again: they are ignored."""
    journal: Journal | None = None
    """Of a program that may outlive its connection."""
    retelling: Retelling | None = None
    """While it tells a new connection what it kept; what it says meanwhile waits there."""
    num_pending_ops: int = 0
    num_kept_bytes: int = 0
    """What is remembered of it (programs/upkeep.py)."""
    is_admitted: bool = False
    """Until then its appends are carried out, so that its prompts are known, and nothing goes to its client."""
    reserved: dict[int, int] = field(default_factory=dict[int, int])
    """By op that has not begun: tokens that were taken from the tenant's bucket for it when the program was admitted."""
    _untold: list[Event] = field(default_factory=list["Event"])

    def tell(self, event: Event) -> None:
        """Send an event to its client; before it is admitted, keep it for then."""
        event = self.numbered(event)
        if self.journal is not None:
            if isinstance(event, wire.Delta):
                delta = self.journal.pass_on(event.op, event)
                if delta is None:
                    return
                event = self.numbered(delta)
            else:
                self.journal.note(event)
        if self.retelling is not None:
            self.retelling.hold(event)
            return
        (self.client.events if self.is_admitted else self._untold).append(event)

    def numbered(self, event: E) -> E:
        """The event under the number by which its client knows the program now."""
        if getattr(event, "program", self.number) == self.number:
            return event
        return msgspec.structs.replace(event, program=self.number)

    def stream_again(self) -> None:
        """Another client listens: what streams begins anew for it."""
        for branch in self.branches.values():
            task = branch.task
            if isinstance(task, Generation) and task.op.stream:
                self.note_output(task)

    def admit(self, event: Event) -> None:
        """It is admitted: say so, and then what has been kept."""
        self.is_admitted = True
        self.client.events.append(event)
        self.client.events.extend(self._untold)
        self._untold.clear()

    def give_back(self, op: int, now: float) -> None:
        """An op ended without having begun: nothing was used of what was taken for it."""
        self.tenant.quota.take_tokens(-self.reserved.pop(op, 0), now)

    def note_output(self, generation: Generation) -> None:
        """A streamed generation has got more output."""
        self.streams[generation] = None
        if self.credits > 0:
            self.client.streaming[self] = None

    def grant(self, amount: int) -> None:
        """The client can take more deltas."""
        self.credits = min(self.credits + amount, MAX_CREDITS)
        if self.streams:
            self.client.streaming[self] = None

    @property
    def begins_to_answer(self) -> bool:
        """Whether it has output of a generation of which nothing has been told."""
        return any(not generation.is_exposed for generation in self.streams)

    def tell_rest(self, generation: Generation) -> None:
        """A generation ends: what no delta carries yet, if it streams. Without credits that comes with the event of its end alone."""
        if generation.op.stream and self.credits > 0:
            delta = generation.take_delta()
            if delta is not None:
                self.credits -= 1
                self.tell(delta)

    def collect_deltas(self, events: list[Event]) -> None:
        """Move output into deltas, one a generation, as far as the credits reach; the rest goes on coalescing."""
        if self.retelling is not None:
            return  # all that streams begins anew when that is over
        while self.streams and self.credits > 0:
            generation = next(iter(self.streams))
            del self.streams[generation]
            delta = generation.take_delta()
            if self.journal is not None:
                delta = self.journal.pass_on(generation.op.op, delta)
            if delta is not None:
                self.credits -= 1
                events.append(self.numbered(delta))
