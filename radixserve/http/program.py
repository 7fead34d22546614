"""A request as a program: appends, a fork when there are several choices, and a generation for each choice, in one frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from radixserve_tokenizer.protocol import Append, Constraint, Fork, Gen, Lease, Priority, Sampling, Text, TokenIds, Tools

if TYPE_CHECKING:
    from radixserve_tokenizer.protocol import Op, Part, ToolSpec, ToolUse


class Numbers(Protocol):
    """What allocates a program's numbers (a channel)."""

    @property
    def program(self) -> int:
        """The program's number."""
        ...

    def next_op(self) -> int:
        """A new op number."""
        ...

    def next_var(self) -> int:
        """A new variable number."""
        ...

    def next_branches(self, count: int) -> int:
        """The first of `count` new branch numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One append: a message of the chat template (with a role), or raw text or ids (without)."""

    role: str = ""
    text: str = ""
    ids: tuple[int, ...] | None = None
    """Raw token ids instead of the text."""
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def parts(self) -> tuple[Part, ...]:
        """The append's values."""
        return (Text(text=self.text),) if self.ids is None else (TokenIds(ids=self.ids),)


@dataclass(frozen=True, kw_only=True)
class ProgramSpec:
    """One prompt and what to do with it."""

    segments: tuple[Segment, ...]
    sampling: Sampling
    constraint: Constraint | None = None
    n: int = 1
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model is told of."""
    tool_use: ToolUse | None = None
    """None: it calls none."""
    parse_reasoning: bool = False
    """Give reasoning apart from the text."""
    lease_s: float = 0.0
    """Above 0 the KV of the only choice's branch is kept so long after its end (seconds); the program must stay open for it."""
    stream: bool = False
    request_fields: dict[str, str] = field(default_factory=dict[str, str])
    """The request's own name for what the engine's errors call otherwise ("constraint" -> "response_format")."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How the programs of a request are opened."""

    api_key: str = ""
    seed: int | None = None
    priority: Priority = "standard"
    cache_salt: str = ""
    group: str = ""
    """Programs of one group are one program to the scheduler."""


def build_ops(spec: ProgramSpec, numbers: Numbers, fork_chunk: int) -> tuple[list[Op], list[int]]:
    """The program's ops in order, and the variable of each choice.

    One choice runs on the root, so that a seed gives the same text whichever API sent the prompt. Several run on the
    branches of forks of at most `fork_chunk`, and differ by their branch's place in the tree.
    """
    program = numbers.program
    ops: list[Op] = [Tools(program=program, op=numbers.next_op(), branch=0, tools=spec.tools)] if spec.tools else []
    ops += [
        Append(program=program, op=numbers.next_op(), branch=0, parts=one.parts(), role=one.role, fields=one.fields)
        for one in spec.segments
    ]
    branches = [0]
    if spec.n > 1:
        first = numbers.next_branches(spec.n)
        branches = list(range(first, first + spec.n))
        for start in range(0, spec.n, fork_chunk):
            count = min(fork_chunk, spec.n - start)
            ops.append(Fork(program=program, op=numbers.next_op(), branch=0, first=first + start, count=count))
    variables: list[int] = []
    for branch in branches:
        variables.append(numbers.next_var())
        ops.append(
            Gen(
                program=program,
                op=numbers.next_op(),
                branch=branch,
                var=variables[-1],
                sampling=spec.sampling,
                constraint=spec.constraint,
                tool_use=spec.tool_use,
                parse_reasoning=spec.parse_reasoning,
                stream=spec.stream,
                where="HTTP request",
            )
        )
    if spec.lease_s > 0:
        ops.append(Lease(program=program, op=numbers.next_op(), branch=branches[0], ttl_s=spec.lease_s))
    return ops, variables
