"""What open programs make this process remember, in bytes: bounded for each tenant, as what costs us much may cost its sender little.

Each op is counted when it is queued. When it has ended, what only it needed is given back, and what its branch has come to
hold is counted: text, ids, and a copy of the conversation to come back to. A rollback gives that back, and so does the end of
a branch, but for what its forks share, which is kept as long as the program.
"""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING, Any

import msgspec

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.errors import OpError

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.branch import Branch
    from radixserve_tokenizer.programs.program import Program
    from radixserve_tokenizer.tenants.identity import Tenant

MAX_BYTES = 512 << 20
"""Of one tenant."""
PROGRAM_BYTES = 4096
BRANCH_BYTES = 2048
OP_BYTES = 512
"""Of each op for as long as its branch is there: to be able to come back to before it."""
_STEP_BYTES = 16
"""Of a branch, for each fork between it and the root."""
_DROPPED_BYTES = 64
_VARIABLE_BYTES = 256
_ID_BYTES = 48
"""Of an id as we get it, and as a conversation keeps it."""
_LOG_ID_BYTES = 8
_BIAS_BYTES = 100
_PART_BYTES = 80


def opened(program: Program) -> None:
    """A program begins. Raises `OpError` beyond the tenant's bound."""
    _take(program, PROGRAM_BYTES + BRANCH_BYTES + getsizeof(program.owner.cache_salt))


def take(branch: Branch, op: wire.Op) -> None:
    """Count an op that is to be queued, with the branches that it makes. Raises `OpError` beyond the tenant's bound."""
    num_bytes = _size(op)
    match op:
        case wire.Fork():
            num_bytes += op.count * _branch_size(len(branch.path) + 1)
        case wire.Gen() | wire.Select() | wire.Score():
            num_bytes += _VARIABLE_BYTES
        case _:
            pass
    _take(branch.program, num_bytes)


def settled(branch: Branch, op: wire.Op) -> None:
    """An op of a branch has done what it had to."""
    kept = OP_BYTES
    match op:
        case wire.Append() | wire.Tools():
            kept = _size(op)
        case wire.Rollback():
            kept = 0  # it takes its own mark back, too
        case _:
            pass
    _ended(branch, op, kept)
    grown = len(branch.log) - branch.num_kept_ids
    num_bytes = max(0, grown) * _LOG_ID_BYTES
    if not isinstance(op, wire.Fork | wire.Lease | wire.Release | wire.Rollback):
        num_bytes += branch.text.copied_bytes
    branch.num_kept_ids += max(0, grown)
    grew(branch, num_bytes)
    if isinstance(op, wire.Fork):
        branch.num_kept_bytes = 0  # its forks share it


def not_run(branch: Branch, op: wire.Op) -> None:
    """An op failed, was skipped or cancelled: its branch holds nothing of it."""
    _ended(branch, op, OP_BYTES)


def check_values(program: Program, texts: list[str]) -> int:
    """How much values take that are put into a branch by their names alone. Raises `OpError` beyond the tenant's bound."""
    num_bytes = sum(map(getsizeof, texts))
    _check(program.tenant, num_bytes)
    return num_bytes


def grew(branch: Branch, num_bytes: int) -> None:
    """A branch has come to hold more; too late to refuse it, but what comes next may be."""
    branch.num_kept_bytes += num_bytes
    _count(branch.program, num_bytes)


def generated(branch: Branch, token_ids: tuple[int, ...], value: str) -> None:
    """A generation has ended: its branch holds its ids, and the program its value."""
    grew(branch, len(token_ids) * _ID_BYTES)
    _count(branch.program, getsizeof(value))


def restored(branch: Branch, num_bytes: int) -> None:
    """A branch holds again what it held when it had so many bytes; what it got since is forgotten."""
    branch.num_kept_ids = min(branch.num_kept_ids, len(branch.log))
    back = max(0, branch.num_kept_bytes - num_bytes)
    branch.num_kept_bytes -= back
    _count(branch.program, -back)


def dropped(branch: Branch) -> None:
    """A branch is gone; its number is still known, and what it shares with its forks."""
    _count(branch.program, _DROPPED_BYTES - branch.num_kept_bytes - _branch_size(len(branch.path)))
    branch.num_kept_bytes = 0


def ended(program: Program) -> None:
    """A program is gone."""
    _count(program, -program.num_kept_bytes)


def _branch_size(depth: int) -> int:
    return BRANCH_BYTES + _STEP_BYTES * depth


def _ended(branch: Branch, op: wire.Op, kept: int) -> None:
    program = branch.program
    program.num_pending_ops -= 1
    branch.num_kept_bytes += kept
    _count(program, kept - _size(op))


def _size(op: wire.Op) -> int:
    """Of an op as it waits. The same each time it is asked."""
    match op:
        case wire.Append():
            return OP_BYTES + sum(map(_part_size, op.parts)) + _json_size(op.fields)
        case wire.Gen():
            sampling, constraint = op.sampling, op.constraint
            return (
                OP_BYTES
                + (len(op.where) if constraint is None else len(op.where) + getsizeof(constraint.source))
                + len(sampling.logit_bias) * _BIAS_BYTES
                + (len(sampling.stop) + len(sampling.stop_token_ids)) * _PART_BYTES
                + sum(map(len, sampling.stop))
            )
        case wire.Select() | wire.Score():
            return OP_BYTES + len(op.where) + sum(map(getsizeof, op.options))
        case wire.Tools():
            return OP_BYTES + sum(_PART_BYTES + 3 * getsizeof(t.parameters) + getsizeof(t.description) for t in op.tools)
        case _:
            return OP_BYTES


def _part_size(part: wire.Part) -> int:
    match part:
        case wire.Text():
            return _PART_BYTES + getsizeof(part.text)
        case wire.TokenIds():
            return _PART_BYTES + _ID_BYTES * len(part.ids)
        case wire.VarRef():
            return _PART_BYTES


def _json_size(value: dict[str, Any]) -> int:
    """As Python objects JSON takes some ten times as much room as on the wire."""
    return 10 * len(msgspec.msgpack.encode(value)) if value else 0


def _take(program: Program, num_bytes: int) -> None:
    _check(program.tenant, num_bytes)
    _count(program, num_bytes)


def _check(tenant: Tenant, num_bytes: int) -> None:
    if tenant.num_kept_bytes + num_bytes > MAX_BYTES:
        text = (
            f"what your open programs hold takes {MAX_BYTES >> 20} MiB of the server's memory (text, ids, tools, ops and "
            "branches): close programs, or drop branches"
        )
        raise OpError(text, code="too_many_ops", status=429, retryable=True)


def _count(program: Program, num_bytes: int) -> None:
    program.num_kept_bytes += num_bytes
    program.tenant.num_kept_bytes += num_bytes
