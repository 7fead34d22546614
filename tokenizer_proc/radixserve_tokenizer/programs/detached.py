"""Programs that may outlive their connection: by which secrets they are found again, and until when they are kept."""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_tokenizer.programs.admission import Refusal
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.programs.journal import Journal, Shelf

if TYPE_CHECKING:
    from radixserve_tokenizer import protocol as wire
    from radixserve_tokenizer.config import TokenizerConfig
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.tenants.identity import Tenant

MAX_TTL_S = 86_400.0
_MIN_KEY_CHARS, _MAX_KEY_CHARS = 16, 128
_RETRY_S = 1.0
_AGAIN_S = 1.0


def check_detached(ttl_s: float, resume_key: str) -> None:
    """Raise `OpError` for an `Open` whose program could not be found again."""
    if not (math.isfinite(ttl_s) and 0 <= ttl_s <= MAX_TTL_S):
        raise OpError(f"detached_ttl_s must be between 0 and {MAX_TTL_S:g}, not {ttl_s}", param="detached_ttl_s")
    if ttl_s > 0 and not _MIN_KEY_CHARS <= len(resume_key) <= _MAX_KEY_CHARS:
        text = f"a detached program needs a resume_key of {_MIN_KEY_CHARS} to {_MAX_KEY_CHARS} characters"
        raise OpError(text, param="resume_key")
    if resume_key and not ttl_s:
        raise OpError("a resume_key is for a detached program: give detached_ttl_s too", param="resume_key")


@dataclass(slots=True)
class _OfTenant:
    """One tenant's."""

    shelf: Shelf
    programs: dict[Program, bytes] = field(default_factory=dict["Program", bytes])
    """With the SHA-256 of their keys."""


class Detached:
    """All programs that were opened with a time to live. Those without a client are parked."""

    def __init__(self, config: TokenizerConfig) -> None:
        self._config = config
        self._tenants: dict[str, _OfTenant] = {}
        self._ttls: dict[Program, float] = {}
        self._told_at: dict[Program, float] = {}
        """When each was taken up last."""
        self.parked: dict[Program, float] = {}
        """Until when each is kept that has no client."""

    def refusal(self, tenant: Tenant, message: wire.Open) -> Refusal | None:
        """Why a program can't be detached; None if it can, or if nobody asks for that."""
        of_tenant = self._tenants.get(tenant.name)
        if not message.detached_ttl_s or of_tenant is None:
            return None
        if self._find(of_tenant, message.resume_key) is not None:
            return Refusal(400, "duplicate_program", "you have a program with this resume_key already: choose another")
        most = self._config.max_detached
        if len(of_tenant.programs) >= most:
            text = f"{len(of_tenant.programs)} of your programs are detached (limit {most}): close some"
            return Refusal(429, "too_many_detached", text, _RETRY_S)
        return None

    def opened(self, program: Program, message: wire.Open) -> None:
        """A program begins that may be detached."""
        config = self._config
        of_tenant = self._tenants.get(program.tenant.name)
        if of_tenant is None:
            of_tenant = self._tenants[program.tenant.name] = _OfTenant(Shelf(config.max_detached_bytes_of_tenant))
        of_tenant.programs[program] = _digest(message.resume_key)
        self._ttls[program] = message.detached_ttl_s
        program.journal = Journal(of_tenant.shelf, config.max_detached_bytes)

    def find(self, tenant: Tenant, resume_key: str) -> Program | None:
        """The tenant's program with this key. Every key is compared, in constant time."""
        of_tenant = self._tenants.get(tenant.name)
        return None if of_tenant is None else self._find(of_tenant, resume_key)

    def park(self, program: Program, now: float) -> None:
        """Its connection is gone: from now on its time runs."""
        self.parked[program] = now + self._ttls[program]

    def keep(self, program: Program, until: float) -> None:
        """It is not to end before, as somebody wants it."""
        if program in self.parked:
            self.parked[program] = max(self.parked[program], until)

    def attached(self, program: Program, now: float) -> None:
        """It has been taken up."""
        self._told_at[program] = now

    def may_tell_again(self, program: Program, now: float) -> bool:
        """Whether one connection may hear again what it has heard: a small message makes us send all that is kept."""
        return now - self._told_at.get(program, -math.inf) >= _AGAIN_S

    def forget(self, program: Program) -> None:
        """A program has ended."""
        self.parked.pop(program, None)
        self._told_at.pop(program, None)
        if self._ttls.pop(program, None) is None:
            return
        of_tenant = self._tenants[program.tenant.name]
        del of_tenant.programs[program]
        if program.journal is not None:
            program.journal.clear()
        if not of_tenant.programs:
            del self._tenants[program.tenant.name]

    @staticmethod
    def _find(of_tenant: _OfTenant, resume_key: str) -> Program | None:
        digest = _digest(resume_key)
        found: Program | None = None
        for program, other in of_tenant.programs.items():
            if hmac.compare_digest(digest, other):
                found = program
        return found


def _digest(resume_key: str) -> bytes:
    return hashlib.sha256(resume_key.encode("utf-8", "surrogatepass")).digest()
