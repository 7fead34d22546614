"""What open programs make this process remember: bounded for each tenant, as forks and empty ops cost their sender nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.program import Program

#: About half a kilobyte each.
MAX_UNITS = 1 << 20
_BRANCH_UNITS = 4
_UNIT_CHARS = 512


def take(program: Program, op: wire.Op) -> None:
    """Count an op, with the branches that it makes and the text that it brings. Raises `OpError` beyond the tenant's bound."""
    units = 1
    if isinstance(op, wire.Fork):
        units += op.count * _BRANCH_UNITS
    elif isinstance(op, wire.Append):
        units += sum(len(part.text) for part in op.parts if isinstance(part, wire.Text)) // _UNIT_CHARS
    if program.tenant.num_kept_units + units > MAX_UNITS:
        text = f"your open programs have {MAX_UNITS} ops together (a branch counts as {_BRANCH_UNITS}): close some"
        raise OpError(text, code="too_many_ops", status=429, retryable=True)
    program.num_kept_units += units
    program.tenant.num_kept_units += units


def dropped(program: Program) -> None:
    """A branch is gone; its number and its ops are still known."""
    _give_back(program, min(program.num_kept_units, _BRANCH_UNITS - 1))


def ended(program: Program) -> None:
    """A program is gone."""
    _give_back(program, program.num_kept_units)


def _give_back(program: Program, units: int) -> None:
    program.num_kept_units -= units
    program.tenant.num_kept_units -= units
