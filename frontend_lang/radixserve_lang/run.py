"""A program that has ended: its result, what it cost, and its tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from radixserve_lang.trace import Trace, trace_of
from radixserve_lang.usage import RunUsage, usage_of

if TYPE_CHECKING:
    from radixserve_lang.records import BranchRecord

T_co = TypeVar("T_co", covariant=True)


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
    return Run(value, error, usage_of(root), trace_of(root))
