"""A branch of a running program, as the user's function sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from radixserve_lang.cell import Cell
from radixserve_lang.fork import Fork
from radixserve_lang.records import BranchRecord, OpRecord
from radixserve_lang.sampling import SamplingArgs, to_sampling
from radixserve_lang.schema import output_type
from radixserve_lang.segments import Segment, flatten
from radixserve_lang.var import Var
from radixserve_lang.where import caller_place
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self, Unpack

    from pydantic import TypeAdapter
    from typing_extensions import TypeForm

    from radixserve_lang.records import OpKind
    from radixserve_lang.segments import Appendable, Part
    from radixserve_lang.session import Session
    from radixserve_tokenizer.protocol import Constraint, Done, ScoreMethod

T = TypeVar("T")


class State:
    """One branch. `s += ...` appends, `gen`, `select` and `score` ask, `fork` splits. Nothing here waits."""

    def __init__(self, session: Session, branch: BranchRecord) -> None:
        self._session = session
        self._branch = branch

    @property
    def path(self) -> tuple[int, ...]:
        """Which child of which child of the root this is; () for the root. Seeds are drawn by it."""
        return self._branch.path

    def __iadd__(self, value: Appendable) -> Self:
        """Append text (raw, without a role), a Var, a message, or a list or tuple of these."""
        for piece in flatten(value):
            role, parts = (piece.role, piece.parts) if isinstance(piece, Segment) else ("", (piece,))
            wired = tuple(self._wire_part(part) for part in parts)
            with self._session.in_order:
                record = self._record("append", role=role, parts=parts)
                message = wire.Append(program=self._program, op=record.number, branch=self._branch.number, parts=wired, role=role)
                self._session.submit(record, message)
        return self

    @overload
    def gen(self, *, json: type[T], **sampling: Unpack[SamplingArgs]) -> Var[T]: ...
    @overload
    def gen(self, *, json: TypeAdapter[T], **sampling: Unpack[SamplingArgs]) -> Var[T]: ...
    @overload
    def gen(self, *, json: Mapping[str, Any], **sampling: Unpack[SamplingArgs]) -> Var[Any]: ...
    @overload
    def gen(self, *, json: TypeForm[T], **sampling: Unpack[SamplingArgs]) -> Var[T]: ...
    @overload
    def gen(self, *, regex: str, **sampling: Unpack[SamplingArgs]) -> Var[str]: ...
    @overload
    def gen(self, *, grammar: str, **sampling: Unpack[SamplingArgs]) -> Var[str]: ...
    @overload
    def gen(self, **sampling: Unpack[SamplingArgs]) -> Var[str]: ...
    def gen(
        self, *, json: Any = None, regex: str | None = None, grammar: str | None = None, **sampling: Unpack[SamplingArgs]
    ) -> Var[Any]:
        """Generate after what the branch holds, append it, and return its value-to-be.

        `json` makes the output a value of that type: a pydantic model, dataclass, TypedDict, Literal, union, primitive,
        `list[...]`, TypeAdapter or JSON Schema dict. `regex` and `grammar` (EBNF) constrain the text. At most one of
        the three. The other arguments are those of `SamplingArgs`.
        """
        if sum(given is not None for given in (json, regex, grammar)) > 1:
            raise TypeError("gen() takes one of json, regex and grammar")
        constraint, convert = _constraint(json, regex, grammar)
        drawing = to_sampling(sampling)
        with self._session.in_order:
            record = self._record("gen", cell=Cell())
            number = self._session.channel.next_var()
            # Deltas are asked for always, but come only when somebody iterates: a program starts without credits.
            message = wire.Gen(
                program=self._program,
                op=record.number,
                branch=self._branch.number,
                var=number,
                sampling=drawing,
                constraint=constraint,
                stream=True,
                where=record.where,
            )
            self._session.submit(record, message)
        return Var(self._session, record, number, convert)

    def select(self, choices: Sequence[str], *, method: ScoreMethod = "mean") -> Var[str]:
        """Append the choice that the model finds likeliest; the Var is that choice, `Var.scores` has all.

        `method` compares by the sum of a choice's token log-probabilities ("sum"), their mean ("mean"), or the sum less
        that without the branch before it ("unconditional").
        """
        return self._choose("select", wire.Select, choices, method, lambda done: done.value)

    def score(self, options: Sequence[str], *, method: ScoreMethod = "mean") -> Var[dict[str, float]]:
        """Each option's score (higher is better); the branch stays as it was. For `method` see `select`."""
        return self._choose("score", wire.Score, options, method, lambda done: {one.option: one.score for one in done.scores})

    def fork(self, count: int) -> Fork:
        """`count` branches that go on from here; this one does too.

        `with s.fork(n) as branches:` cancels and drops them on leaving; without `with` they live to the program's end.
        """
        if count < 0:
            raise ValueError(f"fork({count}): the number of branches can't be negative")
        if count == 0:
            return Fork(self._session, [])
        with self._session.in_order:
            record = self._record("fork")
            first = self._session.channel.next_branches(count)
            born = len(self._branch.children)
            record.forks = tuple(BranchRecord(number=first + i, path=(*self.path, born + i), fork=record) for i in range(count))
            message = wire.Fork(program=self._program, op=record.number, branch=self._branch.number, first=first, count=count)
            self._session.submit(record, message)
            self._branch.children += record.forks
        return Fork(self._session, [State(self._session, branch) for branch in record.forks])

    def cancel(self) -> None:
        """Stop what this branch and its forks are doing, at once. They can't be used afterwards; finished values can."""
        self._session.close_branches([self._branch], f"cancelled at {caller_place()}", drop=False)

    def __repr__(self) -> str:
        return f"<State {'/'.join(map(str, self.path)) or 'root'}{': ' if self._branch.closed else ''}{self._branch.closed}>"

    # ---- making ops ------------------------------------------------------------------------------------------------

    @property
    def _program(self) -> int:
        return self._session.channel.program

    def _record(
        self,
        kind: OpKind,
        *,
        role: str = "",
        parts: tuple[Part, ...] = (),
        cell: Cell | None = None,
    ) -> OpRecord:
        return OpRecord(
            number=self._session.next_op(self._branch),
            kind=kind,
            where=caller_place(),
            branch=self._branch,
            role=role,
            parts=parts,
            cell=cell,
        )

    def _wire_part(self, part: Part) -> wire.Part:
        if isinstance(part, str):
            return wire.Text(text=part)
        if not part.belongs_to(self._session):
            raise ValueError(f"{part!r} belongs to another program; append its .value instead")
        reference = part.reference()
        return wire.Text(text=reference) if isinstance(reference, str) else wire.VarRef(var=reference)

    def _choose(
        self,
        kind: OpKind,
        message: type[wire.Select | wire.Score],
        options: Sequence[str],
        method: ScoreMethod,
        convert: Callable[[Done], T],
    ) -> Var[T]:
        if isinstance(options, str) or not all(isinstance(option, str) for option in options):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{kind}() takes a list of strings, not {options!r}")
        if not options or len(set(options)) < len(options):
            raise ValueError(f"{kind}() needs at least one option and no option twice, not {options!r}")
        with self._session.in_order:
            record = self._record(kind, cell=Cell())
            number = self._session.channel.next_var()
            self._session.submit(
                record,
                message(
                    program=self._program,
                    op=record.number,
                    branch=self._branch.number,
                    var=number,
                    options=tuple(options),
                    method=method,
                    where=record.where,
                ),
            )
        return Var(self._session, record, number, convert)


def _constraint(json: Any, regex: str | None, grammar: str | None) -> tuple[Constraint | None, Callable[[Done], Any]]:
    """What goes on the wire, and how the text becomes a value."""
    if json is not None:
        kind = output_type(json)
        return wire.Constraint(kind="json_schema", source=kind.schema), lambda done: kind.parse(done.value)
    if regex is not None:
        return wire.Constraint(kind="regex", source=regex), _text
    if grammar is not None:
        return wire.Constraint(kind="ebnf", source=grammar), _text
    return None, _text


def _text(done: Done) -> str:
    return done.value
