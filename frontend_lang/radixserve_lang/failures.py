"""From a `Failed` of the server to the error that the program reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from radixserve_lang.errors import (
    BudgetExceededError,
    OpCancelledError,
    OpError,
    OpSkippedError,
    ProgramEndedError,
    ProgramError,
)

if TYPE_CHECKING:
    from radixserve_lang.dispatch import Dispatch
    from radixserve_lang.records import OpRecord
    from radixserve_tokenizer.protocol import Failed

_KINDS: dict[str, type[OpError]] = {"cancelled": OpCancelledError, "budget_exhausted": BudgetExceededError}


def op_error(dispatch: Dispatch, record: OpRecord, event: Failed) -> OpError:
    """The error of one op."""
    earlier = _earlier(dispatch, record, event)
    kind = _KINDS.get(event.code, OpError) if earlier is None else OpSkippedError
    message, cause = event.message, None
    if earlier is not None:
        cause = earlier.failure
        message = f"{earlier.place} failed before it: {event.message}" if cause is None else str(cause)
    error = kind(
        record.kind,
        record.where,
        event.code,
        message,
        status=event.status,
        param=event.param if cause is None else "",
        partial=event.partial,
        retryable=event.retryable,
    )
    error.__cause__ = cause
    return error


def is_echo(failure: OpError | ProgramError) -> bool:
    """It only follows from another failure, or from the user's own cancelling."""
    return isinstance(failure, OpSkippedError | OpCancelledError | ProgramEndedError)


def _earlier(dispatch: Dispatch, record: OpRecord, event: Failed) -> OpRecord | None:
    """The op whose failure this one only follows from."""
    if event.code == "skipped" and (named := re.search(r"\bop (\d+)\b", event.message)):
        return dispatch.find(int(named[1]))
    fork = record.branch.fork
    if event.code == "unknown_branch" and fork is not None and fork.failure is not None:
        return fork
    return None
