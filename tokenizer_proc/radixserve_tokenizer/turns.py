"""Short turns on a core, for threads that have little to do each time and should do it at once.

Linux (6.12 and later) lets whoever asks for shorter turns go first when it wakes up. It gets no more of the core for that. Beside compute
threads that are always busy, passing on a token otherwise waits for the end of their turn, milliseconds in each process that it passes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

#: A tenth of a millisecond, the shortest that Linux knows.
_TURN_NS = 100_000

#: `sched_setattr` and `sched_getattr`, which the C library has no functions for, by machine.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}

#: Size, policy, flags, niceness, priority, runtime, deadline, period: what the first version of the kernel's structure has.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def take_short_turns(except_for: int | None = None) -> int:
    """Ask for them for all threads of this process, but one if `except_for` names its native id; returns for how many.

    Threads and processes that these start inherit them. Where the kernel knows no such thing, nothing changes.
    """
    tasks = Path("/proc/self/task")
    threads = [int(entry.name) for entry in tasks.iterdir()] if tasks.exists() else []
    return sum(_set_turn(thread, _TURN_NS) for thread in threads if thread != except_for)


def take_usual_turns() -> bool:
    """For the calling thread, whatever it has inherited; returns whether that was possible."""
    return _set_turn(0, 0)


def _set_turn(thread: int, turn_ns: int) -> bool:
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return False
    try:
        if os.sched_getscheduler(thread) != os.SCHED_OTHER:
            return False
        niceness = os.getpriority(os.PRIO_PROCESS, thread)
    except OSError:
        return False  # it has ended
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, turn_ns, 0, 0)
    failed: int = ctypes.CDLL(None, use_errno=True).syscall(calls[0], thread, attributes, 0)
    return not failed


def turn_ns(thread: int = 0) -> int:
    """How long a thread's turns are; 0 where the kernel doesn't tell."""
    calls = _CALLS.get(platform.machine())
    attributes = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if calls is None or ctypes.CDLL(None, use_errno=True).syscall(calls[1], thread, attributes, _ATTRIBUTES.size, 0):
        return 0
    runtime_ns: int = _ATTRIBUTES.unpack(attributes.raw)[5]
    return runtime_ns
