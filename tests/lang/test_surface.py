"""What `import radixserve` offers of the DSL, and that its sampling arguments are the protocol's."""

from __future__ import annotations

import msgspec

import radixserve_lang as rs
from radixserve_lang.sampling import SamplingArgs, to_sampling
from radixserve_tokenizer.protocol import Sampling


def test_the_public_names() -> None:
    assert sorted(rs.__all__) == [
        "AnyTool",
        "AsyncFunction",
        "AsyncTool",
        "Attempt",
        "BranchDroppedError",
        "Budget",
        "BudgetExceededError",
        "Call",
        "Client",
        "ClientClosedError",
        "Completions",
        "ConnectionFailedError",
        "EngineLike",
        "Fork",
        "Function",
        "Generate",
        "InvalidValueError",
        "Lease",
        "OpCancelledError",
        "OpError",
        "OpSkippedError",
        "ProgramEndedError",
        "ProgramError",
        "ProgramRefusedError",
        "QueryFailedError",
        "RadixServeError",
        "RemoteEngine",
        "Run",
        "RunUsage",
        "Segment",
        "ServerGoneError",
        "State",
        "Stream",
        "TakenOverError",
        "Tool",
        "ToolError",
        "ToolFailure",
        "Trace",
        "TraceBranch",
        "TraceStep",
        "Var",
        "VarInTextError",
        "as_completed",
        "assistant",
        "connect",
        "function",
        "message",
        "system",
        "testing",
        "tool",
        "user",
    ]
    assert all(getattr(rs, name).__doc__ for name in rs.__all__)


def test_every_sampling_argument_is_a_field() -> None:
    fields = {field.name for field in msgspec.structs.fields(Sampling)}
    assert set(SamplingArgs.__annotations__) == fields - {"prompt_logprobs"}
    assert to_sampling({}) == Sampling()
