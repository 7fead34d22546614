"""A branch of a running program, as the user's function sees it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from radixserve_lang.calls import ToolFailure, finish_tool, result_text, run_tool
from radixserve_lang.cell import Cell
from radixserve_lang.errors import ToolError
from radixserve_lang.fork import Fork
from radixserve_lang.generate import Generate
from radixserve_lang.lease import Lease
from radixserve_lang.records import BranchRecord, OpRecord
from radixserve_lang.segments import Segment, flatten, message
from radixserve_lang.var import Var
from radixserve_lang.where import caller_place
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence
    from typing import Self

    from radixserve_lang.asking import Asked
    from radixserve_lang.calls import Call
    from radixserve_lang.records import OpKind
    from radixserve_lang.segments import Appendable, Part
    from radixserve_lang.session import Session
    from radixserve_tokenizer.protocol import Done, ScoreMethod

T = TypeVar("T")
R = TypeVar("R")
OnError = Literal["raise", "append"]


class State:
    """One branch. `s += ...` appends, `gen`, `select` and `score` ask, `fork` splits, `call` runs a tool. Nothing else waits."""

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
            self._append(piece if isinstance(piece, Segment) else Segment("", (piece,)))
        return self

    if not TYPE_CHECKING:  # checkers know that there is none

        def __add__(self, value: object) -> None:
            raise TypeError(f"a state is appended to in place: write s += ... at {caller_place()}, not s = s + ...")

    @property
    def gen(self) -> Generate:
        """Generate after what the branch holds; `s.gen(...)` returns a Var. The arguments are those of `Generate`."""
        return Generate(self._generate)

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
            parent = self._branch
            first = self._session.channel.next_branches(count)
            born = len(parent.children)
            record.forks = tuple(
                BranchRecord(number=first + i, path=(*self.path, born + i), fork=record, tools=parent.tools) for i in range(count)
            )
            self._session.submit(
                record,
                lambda: wire.Fork(program=self._program, op=record.number, branch=parent.number, first=first, count=count),
            )
            parent.children += record.forks
        return Fork(self._session, [State(self._session, branch) for branch in record.forks])

    def cancel(self) -> None:
        """Stop what this branch and its forks are doing, at once. They can't be used afterwards; finished values can."""
        self._session.close_branches([self._branch], f"cancelled at {caller_place()}", drop=False)

    # ---- tools -----------------------------------------------------------------------------------------------------

    @overload
    def call(self, call: Call[R], *, lease_s: float | None = None, on_error: Literal["raise"] = "raise") -> R: ...
    @overload
    def call(self, call: Call[R], *, lease_s: float | None = None, on_error: Literal["append"]) -> R | ToolFailure: ...
    def call(self, call: Call[Any], *, lease_s: float | None = None, on_error: OnError = "raise") -> Any:
        """Run the tool, append what it returned as a tool message (a string as it is, anything else as JSON), and return it.

        `lease_s` keeps the branch's KV warm meanwhile, for at most so many seconds; the next generation ends the lease. A
        tool that raises is a `ToolError` here; with `on_error="append"` the model is told of it, and a `ToolFailure` returned.
        """
        where = caller_place()
        with self._leased(lease_s):
            try:
                result = run_tool(call, where)
                text = result_text(call, result, where)
            except ToolError as error:
                return self._failed_call(call, error, on_error)
        self._tell(call, text)
        return result

    @overload
    async def acall(
        self, call: Call[Coroutine[Any, Any, R]], *, lease_s: float | None = None, on_error: Literal["raise"] = "raise"
    ) -> R: ...
    @overload
    async def acall(self, call: Call[R], *, lease_s: float | None = None, on_error: Literal["raise"] = "raise") -> R: ...
    @overload
    async def acall(
        self, call: Call[Coroutine[Any, Any, R]], *, lease_s: float | None = None, on_error: Literal["append"]
    ) -> R | ToolFailure: ...
    @overload
    async def acall(self, call: Call[R], *, lease_s: float | None = None, on_error: Literal["append"]) -> R | ToolFailure: ...
    async def acall(self, call: Call[Any], *, lease_s: float | None = None, on_error: OnError = "raise") -> Any:
        """The same without blocking the loop: an async tool runs in it, a plain one in a thread.

        Several at once (`asyncio.gather`) tell the model in the order in which they began, so that a run repeats.
        """
        where = caller_place()
        async with self._branch.turns.take() as come:
            with self._leased(lease_s):
                try:
                    result = await finish_tool(call, where)
                    text = result_text(call, result, where)
                except ToolError as error:
                    await come()
                    return self._failed_call(call, error, on_error)
            await come()
            self._tell(call, text)
        return result

    def lease(self, ttl_s: float) -> Lease:
        """Keep the KV of what the branch holds warm for `ttl_s` seconds (at most an hour), from now on.

        `with s.lease(20):` ends it on leaving; so does the branch's next generation. It is soft: `Lease.is_lost` says
        whether the engine had to take the memory.
        """
        if not isinstance(ttl_s, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a lease takes seconds, not {ttl_s!r}")
        record = self._record("lease", detail=f"{ttl_s:g} s")
        with self._session.in_order:
            self._session.submit(
                record,
                lambda: wire.Lease(program=self._program, op=record.number, branch=self._branch.number, ttl_s=ttl_s),
            )
        self._session.flush()
        return Lease(self.release, record)

    def release(self) -> None:
        """End the branch's lease; nothing happens when it has none."""
        record = self._record("release")
        with self._session.in_order:
            self._session.submit(
                record, lambda: wire.Release(program=self._program, op=record.number, branch=self._branch.number)
            )
        self._session.flush()

    def __repr__(self) -> str:
        return f"<State {'/'.join(map(str, self.path)) or 'root'}{': ' if self._branch.closed else ''}{self._branch.closed}>"

    # ---- making ops ------------------------------------------------------------------------------------------------

    @property
    def _program(self) -> int:
        return self._session.channel.program

    def _record(
        self, kind: OpKind, *, role: str = "", parts: tuple[Part, ...] = (), cell: Cell | None = None, detail: str = ""
    ) -> OpRecord:
        where = caller_place()
        self._session.check_usable(self._branch, f"{kind} at {where}")
        return OpRecord(kind=kind, where=where, branch=self._branch, role=role, parts=parts, cell=cell, detail=detail)

    def _append(self, segment: Segment) -> None:
        record = self._record("append", role=segment.role, parts=segment.parts)

        def build() -> wire.Append:
            return wire.Append(
                program=self._program,
                op=record.number,
                branch=self._branch.number,
                parts=tuple(self._wire_part(part) for part in segment.parts),
                role=segment.role,
                fields=segment.fields,
            )

        with self._session.in_order:
            self._session.submit(record, build)

    def _wire_part(self, part: Part) -> wire.Part:
        if isinstance(part, str):
            return wire.Text(text=part)
        if not part.belongs_to(self._session):
            raise ValueError(f"{part!r} belongs to another program; append its .value instead")
        reference = part.reference()
        return wire.Text(text=reference) if isinstance(reference, str) else wire.VarRef(var=reference)

    def _generate(self, asked: Asked) -> Any:
        if asked.count is not None:
            return tuple(branch._generate_one(asked) for branch in self.fork(asked.count))
        return self._generate_one(asked)

    def _generate_one(self, asked: Asked) -> Var[Any]:
        with self._session.in_order:
            self._offer(asked)
            record = self._record("gen", cell=Cell())
            read = asked.reader(record.place)
            check = record.check = asked.check(read, self._branch.tools)
            if check is not None:
                self._session.check_retries(record.place)
            use = asked.use_of(self._branch.tools)

            def build() -> wire.Gen:
                # Deltas are asked for always, but come only when somebody iterates: a program starts without credits. What
                # may be taken back is not shown before it is accepted.
                return wire.Gen(
                    program=self._program,
                    op=record.number,
                    branch=self._branch.number,
                    var=record.var,
                    sampling=asked.drawing(0 if check is None else len(check.refused)),
                    constraint=asked.constraint,
                    tool_use=use,
                    stream=check is None,
                    where=record.where,
                )

            if check is not None:
                check.build = build
            self._session.submit(record, build)
        return Var(self._session, self, record, read if check is None else lambda done: check.value)

    def _offer(self, asked: Asked) -> None:
        """Set the branch's tools, unless it has these already: the model reads them, so a change costs a new prefix."""
        specs = asked.specs()
        if set(specs) <= set(self._branch.tools):
            return
        record = self._record("tools", detail=", ".join(spec.name for spec in specs))
        self._session.submit(
            record,
            lambda: wire.Tools(program=self._program, op=record.number, branch=self._branch.number, tools=specs),
        )
        self._branch.tools = specs

    @contextlib.contextmanager
    def _leased(self, lease_s: float | None) -> Generator[None]:
        """A lease that is left to the next generation, but not when the block raises: there may be none."""
        if lease_s is None:
            yield
            return
        self.lease(lease_s)
        try:
            yield
        except BaseException:
            if not self._branch.closed:
                self.release()
            raise

    def _failed_call(self, call: Call[Any], error: ToolError, on_error: OnError) -> ToolFailure:
        if on_error != "append":
            raise error
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        text = f"Error: {type(cause).__name__}: {cause}".encode(errors="backslashreplace").decode()
        self._tell(call, text)
        return ToolFailure(call.name, cause, text)

    def _tell(self, call: Call[Any], text: str) -> None:
        self._append(message("tool", text, tool_call_id=call.id, name=call.name))

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
            self._session.submit(
                record,
                lambda: message(
                    program=self._program,
                    op=record.number,
                    branch=self._branch.number,
                    var=record.var,
                    options=tuple(options),
                    method=method,
                    where=record.where,
                ),
            )
        return Var(self._session, self, record, convert)
