"""What a program asks for at once: estimated when it is to be admitted, from the generations at the heads of its branches."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from radixserve_tokenizer import protocol as wire
from radixserve_tokenizer.programs import uncached
from radixserve_tokenizer.programs.branch import ValueOp
from radixserve_tokenizer.programs.errors import OpError
from radixserve_tokenizer.text.errors import InvalidTextError, TemplateError

if TYPE_CHECKING:
    from radixserve_tokenizer.programs.branch import Branch
    from radixserve_tokenizer.programs.program import Program

logger = logging.getLogger(__name__)

#: What a generation counts that names no `max_tokens`, until it has ended and its output is known.
DEFAULT_OUTPUT_TOKENS = 256
_BYTES_A_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Needs:
    """Sums over the generations and scorings that can begin as soon as the program is admitted."""

    tokens: int = 0
    """Prompts and the outputs asked for."""
    uncached_tokens: int = 0
    by_op: dict[int, int] = field(default_factory=dict[int, int])
    """`tokens` by op."""


NO_NEEDS = Needs()


def generation_tokens(prompt_tokens: int, max_tokens: int | None, max_context: int | None) -> int:
    """The estimate for one generation: its prompt and the output that it asks for, which the context bounds."""
    output = DEFAULT_OUTPUT_TOKENS if max_tokens is None else max_tokens
    if max_context is not None:
        output = min(output, max(0, max_context - prompt_tokens))
    return prompt_tokens + max(0, output)


def scoring_tokens(prompt_tokens: int, options: tuple[str, ...]) -> int:
    """The estimate for one scoring: the prompt once, and each option."""
    return prompt_tokens + sum(len(option) // _BYTES_A_TOKEN + 1 for option in options)


def needs_of(program: Program, max_context: int | None) -> Needs:
    """Of a program whose appends have been carried out."""
    by_op: dict[int, int] = {}
    asking: list[Branch] = []
    for branch in program.branches.values():
        op = branch.queue[0] if branch.queue else None
        if not isinstance(op, ValueOp) or not branch.born or branch.poison is not None:
            continue
        _write(branch, op)
        asking.append(branch)
        if isinstance(op, wire.Gen):
            by_op[op.op] = generation_tokens(len(branch.log), op.sampling.max_tokens, max_context)
        else:
            by_op[op.op] = scoring_tokens(len(branch.log), op.options)
    return Needs(sum(by_op.values()), uncached.look(asking), by_op)


def is_at_rest(branch: Branch) -> bool:
    """Whether a branch of a program that is not admitted yet can go no further."""
    if not branch.queue or not branch.born or branch.waits_at_gate:
        return True
    op = branch.queue[0]
    if isinstance(op, wire.Append):
        return any(isinstance(part, wire.VarRef) for part in op.parts)
    return not isinstance(op, wire.Tools | wire.Fork | wire.Rollback)


def _write(branch: Branch, op: wire.Gen | wire.Select | wire.Score) -> None:
    """Make ids of the text that waits, as the op will do when it begins. What can't be written fails there, not here."""
    mark = branch.marks.setdefault(op.op, branch.mark())
    try:
        if isinstance(op, wire.Score):
            branch.text.seal()
        else:
            branch.text.open_turn()
    except (OpError, TemplateError, InvalidTextError) as error:
        logger.debug("op %d of program %d can't be measured: %s", op.op, op.program, error)
        branch.restore(mark)
