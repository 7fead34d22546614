"""Programs lose their connection and get another one."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.clients import Client
from radixserve_tokenizer.programs.errors import OpError, invalid_key
from radixserve_tokenizer.programs.program import MAX_CREDITS

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.outcomes import Outcomes
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.programs.services import Services
    from radixserve_tokenizer.tenants.identity import Tenant

logger = logging.getLogger(__name__)

#: What is kept for a tenant is told again at this rate, in bytes a second: a message of a few bytes makes us send it all, which holds up the loop.
_TELL_BYTES_A_S = 2 << 20
_MAX_PUT_OFF = 256
#: What is told sooner than that delays nobody.
_FREE_S = 0.02
#: A program does not end while its attach waits: longer than all that a tenant may keep takes.
_KEEP_S = 60.0


class Attachment:
    """Parks detached programs whose client is gone, gives them to who shows their key, and ends them when their time is over."""

    def __init__(self, services: Services, outcomes: Outcomes) -> None:
        self._services = services
        self._outcomes = outcomes
        self._put_off: dict[Tenant, deque[tuple[Client, wire.Attach]]] = {}
        self._free_at: dict[Tenant, float] = {}
        """Until when each tenant's attaches are put off, as it was told much before."""

    def park(self, program: Program) -> bool:
        """Its client is gone. False if it was not opened to outlive that."""
        if program.journal is None or not program.is_admitted:
            return False
        self._let_go(program)
        program.journal.is_parked = True
        program.client = Client(b"", math.inf)
        program.client.programs[program.number] = program
        program.credits = 0
        self._services.detached.park(program, self._services.clock())
        return True

    def forget(self, client: Client) -> None:
        """A client is gone, and what it asked for."""
        for tenant, waiting in list(self._put_off.items()):
            left = deque(each for each in waiting if each[0] is not client)
            if left:
                self._put_off[tenant] = left
            else:
                del self._put_off[tenant]

    def tick(self, now: float) -> None:
        """Carry on with what was put off, and end what nobody came back for."""
        for tenant in [one for one, free_at in self._free_at.items() if now >= free_at]:
            del self._free_at[tenant]
            waiting = self._put_off.pop(tenant, None)
            while waiting and tenant not in self._free_at:
                self.attach(*waiting.popleft())
            if waiting:
                self._put_off[tenant] = waiting
        for program, until in list(self._services.detached.parked.items()):
            program.client.events.clear()
            if now >= until:
                logger.info("a detached program of tenant %r was not taken up again in time", program.tenant.name)
                self._outcomes.end(program)

    def attach(self, client: Client, message: wire.Attach) -> None:
        """Take up a program, whether its old connection is known to be gone or not."""
        try:
            program = self._wanted(client, message)
            if program.tenant in self._free_at:
                self._wait(program, client, message)
                return
        except OpError as error:
            client.note_refused(message.program)
            client.events.append(
                wire.Refused(program=message.program, status=error.status, code=error.code, message=error.message)
            )
            return
        assert program.journal is not None
        old, old_number = program.client, program.number
        self._let_go(program)
        if self._services.detached.parked.pop(program, None) is None and (old, old_number) != (client, message.program):
            text = "another connection has taken this program over"
            old.note_refused(old_number)
            old.events.append(wire.Failed(program=old_number, op=-1, code="taken_over", message=text, status=409))
        client.forget_refused(message.program)
        client.programs[message.program] = program
        program.client, program.number = client, message.program
        program.credits = min(message.credits, MAX_CREDITS)
        program.last_resent = program.last_op
        self._services.detached.attached(program, self._services.clock())
        self._told(program)
        client.events.append(_attached(program))
        self._services.retellings.begin(program, program.journal.replay(program.number, message.from_op))

    def _let_go(self, program: Program) -> None:
        """Its client knows it no more."""
        client = program.client
        client.programs.pop(program.number, None)
        client.streaming.pop(program, None)
        self._services.retellings.stop(program)

    def _wait(self, program: Program, client: Client, message: wire.Attach) -> None:
        waiting = self._put_off.setdefault(program.tenant, deque())
        if len(waiting) >= _MAX_PUT_OFF:
            raise OpError(f"{_MAX_PUT_OFF} of your attaches wait already", code="too_many_attaches", status=429)
        waiting.append((client, message))
        self._services.detached.keep(program, self._services.clock() + _KEEP_S)

    def _told(self, program: Program) -> None:
        """All that it kept is about to be told."""
        assert program.journal is not None
        seconds = program.journal.num_bytes / _TELL_BYTES_A_S
        if seconds > _FREE_S:
            self._free_at[program.tenant] = self._services.clock() + seconds

    def _wanted(self, client: Client, message: wire.Attach) -> Program:
        """The program that is meant; raises `OpError`, which does not tell why there is none."""
        if message.credits < 0:
            raise OpError(f"credits must be 0 or more, not {message.credits}", param="credits")
        tenant = self._services.tenants.caller(message.api_key, client.curve_key)
        if tenant is None:
            raise invalid_key()
        program = self._services.detached.find(tenant, message.resume_key)
        if program is None or not program.is_admitted:
            text = "no program can be taken up with this key: it never was, has been closed, or its time is over"
            raise OpError(text, code="unknown_program", status=404, param="resume_key")
        if program.client is client and not self._services.detached.may_tell_again(program, self._services.clock()):
            raise OpError("this connection has just taken the program up", code="too_many_attaches", status=429)
        taken = client.programs.get(message.program)
        if taken is not None and taken is not program:
            text = f"program {message.program} is open already: count program numbers up"
            raise OpError(text, code="duplicate_program", param="program")
        return program


def _attached(program: Program) -> wire.Attached:
    return wire.Attached(
        program=program.number,
        next_op=program.last_op + 1,
        next_var=max(program.variables, default=-1) + 1,
        next_branch=max(max(program.branches, default=-1), max(program.dropped, default=-1)) + 1,
    )
