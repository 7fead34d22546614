"""What a detached program has said, kept for whoever takes it up again: outcomes of its ops, and the pieces of what still streams."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs.retelling import Retelling

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Shelf:
    """Room for what programs keep, in bytes as on the wire; each tenant has one."""

    max_bytes: int
    num_bytes: int = 0


class Journal:
    """Kept encoded, so that its size is known. When there is no more room the oldest outcomes go, and are answered with an error."""

    def __init__(self, shelf: Shelf, max_bytes: int) -> None:
        self._shelf = shelf
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._outcomes: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        """By op, in the order in which they ended: its variable and its `Done` or `Failed`."""
        self._gone: dict[int, int] = {}
        """Variables of ops whose outcome is not kept any more."""
        self._deltas: dict[int, list[bytes]] = {}
        """By op that still streams: all that was sent."""
        self._unkept: set[int] = set()
        """Ops that still stream and have said more than there is room for."""
        self._due: set[int] = set()
        """Ops that still stream, whose beginning the present client has not had."""
        self._lost_leases: dict[int, None] = {}
        self.is_parked = False
        """Nobody listens."""

    @property
    def num_bytes(self) -> int:
        """What it holds."""
        return self._num_bytes

    # ---- what the program says ------------------------------------------------------------------------------------

    def note(self, event: wire.Event) -> None:
        """The program says something that is no delta."""
        match event:
            case wire.Done() | wire.Failed() if event.var >= 0:
                self._forget_deltas(event.op)
                self._keep(event)
            case wire.LeaseLost() if self.is_parked:
                self._lost_leases[event.branch] = None
            case _:
                pass

    def pass_on(self, op: int, delta: wire.Delta | None) -> wire.Delta | None:
        """What to send of an op that streams: this delta, with all before it if its client has not had that."""
        if delta is not None and op not in self._unkept:
            frame = _frame(delta)
            self._deltas.setdefault(op, []).append(frame)
            self._add(len(frame))
            if self._is_full:
                self._forget_deltas(op)
                self._unkept.add(op)
        if op not in self._due:
            return delta
        if op in self._unkept:
            return None  # without its beginning the rest is of no use; `Done` has it all
        self._due.discard(op)
        return _joined(self._deltas.get(op, []))

    # ---- who takes it up ------------------------------------------------------------------------------------------

    def replay(self, program: int, from_op: int) -> Retelling:
        """Outcomes of ops from `from_op` on, in the order in which they ended; what is not kept comes first, as `Failed`."""
        self.is_parked = False
        self._due = set(self._deltas) | self._unkept
        lost, self._lost_leases = self._lost_leases, {}
        return Retelling(
            [_not_kept(program, op, var, self._max_bytes) for op, var in self._gone.items() if op >= from_op],
            [frame for op, (_, frame) in self._outcomes.items() if op >= from_op],
            [wire.LeaseLost(program=program, branch=branch) for branch in lost],
        )

    def note_lost(self, branches: list[int]) -> None:
        """Leases of these branches were lost, and whoever listened has not heard of it."""
        self._lost_leases.update(dict.fromkeys(branches))

    def streaming(self) -> Iterator[int]:
        """Ops of which something was sent and that have not ended."""
        yield from self._due

    def clear(self) -> None:
        """The program has ended: what it kept is forgotten."""
        self._outcomes.clear()
        self._deltas.clear()
        self._add(-self._num_bytes)

    # ---- parts ----------------------------------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        return self._num_bytes > self._max_bytes or self._shelf.num_bytes > self._shelf.max_bytes

    def _add(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._shelf.num_bytes += num_bytes

    def _keep(self, event: wire.Done | wire.Failed) -> None:
        frame = _frame(event)
        self._outcomes[event.op] = (event.var, frame)
        self._add(len(frame))
        while self._is_full and self._outcomes:
            op, (var, dropped) = self._outcomes.popitem(last=False)
            self._gone[op] = var
            self._add(-len(dropped))

    def _forget_deltas(self, op: int) -> None:
        self._add(-sum(map(len, self._deltas.pop(op, []))))
        self._unkept.discard(op)
        self._due.discard(op)


def _frame(event: wire.Event) -> bytes:
    alone: list[wire.Event] = [event]
    return wire.encode(alone)


def _joined(frames: list[bytes]) -> wire.Delta | None:
    """All deltas of one op as one."""
    deltas = [event for frame in frames for event in wire.decode_events(frame) if isinstance(event, wire.Delta)]
    if not deltas:
        return None
    return wire.Delta(
        program=deltas[0].program,
        op=deltas[0].op,
        var=deltas[0].var,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        reasoning="".join(delta.reasoning for delta in deltas),
        calls=tuple(chain.from_iterable(delta.calls for delta in deltas)),
    )


def _not_kept(program: int, op: int, var: int, max_bytes: int) -> wire.Failed:
    text = (
        f"the outcome of op {op} is not kept any more: a detached program keeps at most {max_bytes >> 20} MiB of outcomes, "
        "and a tenant's share a limit; take values up sooner"
    )
    return wire.Failed(program=program, op=op, var=var, code="outcome_not_kept", message=text, status=410)
