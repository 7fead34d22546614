"""The Python DSL for agent programs, and the client that sends them."""

from __future__ import annotations

from radixserve_lang import testing
from radixserve_lang.budget import Budget
from radixserve_lang.calls import Call, ToolFailure
from radixserve_lang.client import Client
from radixserve_lang.completion import Completions, as_completed
from radixserve_lang.connect import EngineLike, RemoteEngine, connect
from radixserve_lang.errors import (
    Attempt,
    BranchDroppedError,
    BudgetExceededError,
    ClientClosedError,
    ConnectionFailedError,
    InvalidValueError,
    OpCancelledError,
    OpError,
    OpSkippedError,
    ProgramEndedError,
    ProgramError,
    ProgramRefusedError,
    QueryFailedError,
    RadixServeError,
    ServerGoneError,
    TakenOverError,
    ToolError,
    VarInTextError,
)
from radixserve_lang.fork import Fork
from radixserve_lang.function import AsyncFunction, Function, function
from radixserve_lang.generate import Generate
from radixserve_lang.lease import Lease
from radixserve_lang.run import Run
from radixserve_lang.segments import Segment, assistant, message, system, user
from radixserve_lang.state import State
from radixserve_lang.stream import Stream
from radixserve_lang.tools import AnyTool, AsyncTool, Tool, tool
from radixserve_lang.trace import Trace, TraceBranch, TraceStep
from radixserve_lang.usage import RunUsage
from radixserve_lang.var import Var

__all__ = [
    # writing programs
    "function",
    "State",
    "TakenOverError",
    "Var",
    "Fork",
    "as_completed",
    "Segment",
    "system",
    "user",
    "assistant",
    "message",
    "Generate",
    "Budget",
    # tools
    "tool",
    "Tool",
    "AsyncTool",
    "AnyTool",
    "Call",
    "ToolFailure",
    "Lease",
    # running them
    "connect",
    "EngineLike",
    "RemoteEngine",
    "Client",
    "Function",
    "AsyncFunction",
    "Completions",
    "Run",
    "RunUsage",
    "Stream",
    "Trace",
    "TraceBranch",
    "TraceStep",
    # trying them without a model
    "testing",
    # what goes wrong
    "RadixServeError",
    "ConnectionFailedError",
    "QueryFailedError",
    "ClientClosedError",
    "ProgramError",
    "ProgramRefusedError",
    "ServerGoneError",
    "ProgramEndedError",
    "OpError",
    "OpCancelledError",
    "OpSkippedError",
    "BudgetExceededError",
    "InvalidValueError",
    "Attempt",
    "ToolError",
    "VarInTextError",
    "BranchDroppedError",
]
