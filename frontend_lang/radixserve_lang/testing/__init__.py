"""Programs without a model: `Scripted` answers from a list, `Replay` plays back what `record` wrote down."""

from __future__ import annotations

from radixserve_lang.testing.answers import RUNNING, Failure, Reply, ToolCalls, call, calls
from radixserve_lang.testing.errors import DivergedError, RecordingError, ScriptError
from radixserve_lang.testing.recorder import record
from radixserve_lang.testing.replay import Replay
from radixserve_lang.testing.scripted import Scripted

__all__ = [
    "Scripted",
    "RUNNING",
    "Reply",
    "Failure",
    "ToolCalls",
    "call",
    "calls",
    "record",
    "Replay",
    "ScriptError",
    "DivergedError",
    "RecordingError",
]
