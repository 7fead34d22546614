"""A program that has ended: its result, what it cost, and its tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from radixserve_lang.trace import Trace, trace_of
from radixserve_tokenizer.protocol import Done

if TYPE_CHECKING:
    from radixserve_lang.records import BranchRecord

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class RunUsage:
    """Totals over the ops that finished. Prompt tokens count for each op anew: `cached_tokens` of them were not computed."""

    num_ops: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens


class Run(Generic[T_co]):
    """The outcome of one run: a value or an error."""

    def __init__(self, value: T_co | None, error: Exception | None, usage: RunUsage, trace: Trace) -> None:
        self._value = value
        self.error = error
        """What went wrong; only in results of `run_batch`, `run` raises it."""
        self.usage = usage
        self.trace = trace

    @property
    def value(self) -> T_co:
        """What the program returned; raises `error` if there is one."""
        if self.error is not None:
            raise self.error
        return cast("T_co", self._value)

    def __repr__(self) -> str:
        return f"<Run {self._value!r}>" if self.error is None else f"<Run failed: {self.error!r}>"


def run_of(root: BranchRecord, value: T_co | None, error: Exception | None) -> Run[T_co]:
    """From a program that has ended."""
    return Run(value, error, _usage(root), trace_of(root))


def _usage(root: BranchRecord) -> RunUsage:
    outcomes = [op.cell.outcome for branch in root.family() for op in branch.ops if op.cell is not None]
    usages = [outcome.usage for outcome in outcomes if isinstance(outcome, Done)]
    return RunUsage(
        num_ops=len(usages),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
    )
