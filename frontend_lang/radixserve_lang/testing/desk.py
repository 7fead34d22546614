"""A server in miniature: it takes the protocol's messages in, keeps the branches, and asks somebody for the values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from radixserve_lang.testing.branches import Branch, Item, Poison, Program, render, words
from radixserve_lang.testing.questions import question
from radixserve_tokenizer import protocol as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from radixserve_lang.testing.branches import ValueOp
    from radixserve_lang.testing.questions import Question

#: A value, a failure, or None: not yet (`Desk.settle` brings it).
Outcome: TypeAlias = wire.Done | wire.Failed | None


class Desk:
    """Ops of one branch run in order; of those that can run, the one that was sent first. Not thread-safe.

    `ask` answers each op with a value; its `program`, `op` and `var` are filled in here. Events are told in order.
    """

    def __init__(self, ask: Callable[[Question], Outcome], *, on_end: Callable[[Program], None] | None = None) -> None:
        self._ask = ask
        self._on_end = on_end
        self._programs: dict[int, Program] = {}
        self._events: list[wire.Event] = []

    def take(self, messages: Iterable[wire.FromClient]) -> list[wire.Event]:
        """Messages that came together; returns what they led to."""
        touched: dict[int, None] = {}
        for message in messages:
            number = self._hear(message)
            if number is not None:
                touched[number] = None
        for number in touched:
            self._advance(number)
        return self._drain()

    def settle(self, program: int, op: int, outcome: wire.Done | wire.Failed) -> list[wire.Event]:
        """The outcome of an op that runs; one that does not any more is ignored."""
        known = self._programs.get(program)
        branch = (
            next((b for b in known.branches.values() if b.running is not None and b.running.op == op), None) if known else None
        )
        if known is not None and branch is not None and branch.running is not None:
            running, branch.running = branch.running, None
            self._finish(known, branch, running, outcome)
            self._advance(program)
        return self._drain()

    def paths(self, program: int, branches: Iterable[int]) -> set[tuple[int, ...]]:
        """Of these branches, as far as they are there."""
        known = self._programs.get(program)
        return set() if known is None else {known.branches[number].path for number in branches if number in known.branches}

    def _drain(self) -> list[wire.Event]:
        events, self._events = self._events, []
        return events

    # ---- hearing -------------------------------------------------------------------------------------------------

    def _hear(self, message: wire.FromClient) -> int | None:
        match message:
            case wire.Open():
                program = self._programs[message.program] = Program(message, credits=message.credits)
                program.branches[message.branch] = Branch(message.branch, (), born=True)
                self._events.append(wire.Admitted(program=message.program))
            case wire.Attach():
                text = "there are no detached programs here"
                self._events.append(wire.Refused(program=message.program, status=404, code="unknown_program", message=text))
            case wire.Close():
                self._close(message.program)
            case wire.Credit():
                if message.program in self._programs:
                    self._programs[message.program].credits += message.amount
            case wire.Cancel() | wire.Drop():
                self._cancel(message, drop=isinstance(message, wire.Drop))
            case wire.Hello() | wire.Ping() | wire.Query():
                pass
            case _:
                self._queue(message)
                return message.program
        return None

    def _queue(self, op: wire.Op) -> None:
        program = self._programs.get(op.program)
        if program is None:
            return
        branch = program.branches.get(op.branch)
        if branch is None:
            self._fail_unsent(op, f"branch {op.branch} is not there")
            return
        if isinstance(op, wire.Fork):
            for number in range(op.first, op.first + op.count):
                program.branches[number] = Branch(number, (*branch.path, branch.num_children))
                branch.num_children += 1
        branch.queue.append(op)

    def _close(self, number: int) -> None:
        program = self._programs.get(number)
        if program is None:
            return
        if self._on_end is not None:
            self._on_end(program)
        del self._programs[number]

    def _cancel(self, message: wire.Cancel | wire.Drop, *, drop: bool) -> None:
        program = self._programs.get(message.program)
        if program is None:
            return
        for branch in [program.branches[number] for number in message.branches if number in program.branches]:
            ops: list[wire.Op] = [] if branch.running is None else [branch.running]
            ops += branch.queue
            branch.running = None
            branch.queue.clear()
            for op in ops:
                poison = Poison(ops[0].op, "the branch was cancelled", 499)
                self._end(program, branch, op, poison, code="cancelled", message=poison.message)
            if drop:
                program.branches.pop(branch.number)
                program.dropped.add(branch.number)

    def _fail_unsent(self, op: wire.Op, text: str) -> None:
        var = op.var if isinstance(op, wire.Gen | wire.Select | wire.Score) else -1
        self._events.append(wire.Failed(program=op.program, op=op.op, var=var, code="unknown_branch", message=text, status=400))

    # ---- running -------------------------------------------------------------------------------------------------

    def _advance(self, number: int) -> None:
        program = self._programs.get(number)
        while program is not None:
            ready = [branch for branch in program.branches.values() if _can_run(program, branch)]
            if not ready:
                return
            branch = min(ready, key=lambda one: one.queue[0].op)
            self._run(program, branch, branch.queue.popleft())

    def _run(self, program: Program, branch: Branch, op: wire.Op) -> None:
        poison = branch.poison
        if poison is not None and not (isinstance(op, wire.Rollback) and op.to_op <= poison.op and op.to_op in branch.marks):
            self._end(program, branch, op, poison, code="skipped", message=f"skipped: op {poison.op} failed: {poison.message}")
            return
        branch.marks.setdefault(op.op, branch.mark())
        match op:
            case wire.Append():
                self._append(program, branch, op)
            case wire.Gen() | wire.Select() | wire.Score():
                self._value(program, branch, op)
            case wire.Fork():
                for child in range(op.first, op.first + op.count):
                    if child in program.branches:
                        program.branches[child].inherit(branch)
            case wire.Rollback():
                self._rollback(program, branch, op)
            case wire.Tools():
                branch.tools = op.tools
            case wire.Lease() | wire.Release():
                pass

    def _append(self, program: Program, branch: Branch, op: wire.Append) -> None:
        texts: list[str] = []
        for part in op.parts:
            match part:
                case wire.Text():
                    texts.append(part.text)
                case wire.TokenIds():
                    texts.append("".join(f"<{token}>" for token in part.ids))
                case wire.VarRef():
                    value = program.values[part.var]
                    if isinstance(value, Poison):
                        text = f"skipped: op {value.op} failed: {value.message}"
                        self._end(program, branch, op, value, code="skipped", message=text)
                        return
                    texts.append(value)
        branch.items.append(Item("".join(texts), op.role, op.fields))

    def _value(self, program: Program, branch: Branch, op: ValueOp) -> None:
        asked = question(op.program, program, branch, op)
        branch.num_asked += 1
        outcome = self._ask(asked)
        if outcome is None:
            branch.running = op
        else:
            self._finish(program, branch, op, outcome)

    def _finish(self, program: Program, branch: Branch, op: ValueOp, outcome: wire.Done | wire.Failed) -> None:
        if isinstance(outcome, wire.Failed):
            event = msgspec.structs.replace(outcome, program=op.program, op=op.op, var=op.var)
            self._end(program, branch, op, Poison(op.op, outcome.message, outcome.status), event=event)
            return
        num_prompt = len(words(render(branch.items, answering=isinstance(op, wire.Gen))))
        done = msgspec.structs.replace(outcome, program=op.program, op=op.op, var=op.var)
        if done.usage == wire.Usage():
            counted = wire.Usage(
                prompt_tokens=num_prompt,
                cached_tokens=min(branch.num_cached, num_prompt),
                output_tokens=len(words(done.value)) if isinstance(op, wire.Gen) else 0,
            )
            done = msgspec.structs.replace(done, usage=counted)
        self._keep(branch, op, done)
        branch.num_seen = len(branch.items)
        branch.num_cached = len(words(render(branch.items, answering=False)))
        program.values[op.var] = done.value
        if isinstance(op, wire.Gen) and op.stream:
            self._stream(program, op, done)
        self._events.append(done)

    @staticmethod
    def _keep(branch: Branch, op: ValueOp, done: wire.Done) -> None:
        if isinstance(op, wire.Score):
            return
        calls = [{"name": call.name, "arguments": call.arguments} for call in done.calls]
        branch.items.append(Item(done.value + (json.dumps(calls) if calls else ""), is_generated=True))

    def _stream(self, program: Program, op: wire.Gen, done: wire.Done) -> None:
        """A delta for each word, as far as the credits reach; the rest comes with `Done`."""
        for index, piece in enumerate(words(done.value)):
            if program.credits <= 0:
                return
            program.credits -= 1
            usage = msgspec.structs.replace(done.usage, output_tokens=1) if index == 0 else None
            self._events.append(wire.Delta(program=op.program, op=op.op, var=op.var, text=piece, usage=usage))

    def _rollback(self, program: Program, branch: Branch, op: wire.Rollback) -> None:
        mark = branch.marks.get(op.to_op)
        if mark is None or op.to_op >= op.op:
            text = f"op {op.to_op} is not an op of branch {branch.number} that has run and has not been rolled back"
            self._events.append(wire.Failed(program=op.program, op=op.op, code="unknown_op", message=text, status=400))
            self._end(program, branch, op, Poison(op.op, text, 400))
            return
        branch.restore(mark)
        if branch.poison is not None and branch.poison.op >= op.to_op:
            branch.poison = None
        for number in [number for number in branch.marks if op.to_op < number <= op.op]:
            del branch.marks[number]

    def _end(
        self,
        program: Program,
        branch: Branch,
        op: wire.Op,
        poison: Poison,
        *,
        code: str = "",
        message: str = "",
        event: wire.Failed | None = None,
    ) -> None:
        """An op ends without a value: what comes after it on its branch is skipped."""
        mark = branch.marks.setdefault(op.op, branch.mark())
        if branch.poison is None:
            branch.restore(mark)
            branch.poison = poison
        if isinstance(op, wire.Gen | wire.Select | wire.Score):
            program.values[op.var] = poison
            if event is None:
                event = wire.Failed(program=op.program, op=op.op, var=op.var, code=code, message=message, status=poison.status)
            self._events.append(event)
        elif isinstance(op, wire.Fork):
            for number in range(op.first, op.first + op.count):
                child = program.branches.get(number)
                if child is not None and not child.born:
                    child.born = True
                    child.poison = child.poison or poison


def _can_run(program: Program, branch: Branch) -> bool:
    """Whether the op at the head need not wait."""
    if not branch.born or branch.running is not None or not branch.queue:
        return False
    op = branch.queue[0]
    if branch.poison is not None or not isinstance(op, wire.Append):
        return True
    return all(part.var in program.values for part in op.parts if isinstance(part, wire.VarRef))
