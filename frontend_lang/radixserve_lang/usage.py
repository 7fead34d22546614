"""What a program has cost, by what its ops reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixserve_lang.budget import Budget
from radixserve_tokenizer.protocol import Done

if TYPE_CHECKING:
    from radixserve_lang.records import BranchRecord


@dataclass(frozen=True, slots=True)
class RunUsage:
    """Totals over the ops that finished. Prompt tokens count for each op anew: `cached_tokens` of them were not computed.

    A generation that was tried again counts each time.
    """

    num_ops: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens


def usage_of(root: BranchRecord) -> RunUsage:
    """Of a program, as things stand now."""
    ended = _ended(root)
    usages = [done.usage for done in ended]
    return RunUsage(
        num_ops=len(usages),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        tool_calls=sum(len(done.calls) for done in ended),
    )


def used(root: BranchRecord, seconds: float) -> Budget:
    """The same as a budget would count it."""
    usage = usage_of(root)
    return Budget(tokens=usage.output_tokens, seconds=max(seconds, 1e-9), tool_calls=usage.tool_calls)


def _ended(root: BranchRecord) -> list[Done]:
    """Whatever was generated to its end, accepted or not."""
    ended: list[Done] = []
    for branch in root.family():
        for op in list(branch.ops):
            refused = () if op.check is None else op.check.refused
            ended += refused
            # The last refused attempt is no outcome of the cell, which holds the error.
            if op.cell is not None and isinstance(op.cell.outcome, Done):
                ended.append(op.cell.outcome)
    return ended
