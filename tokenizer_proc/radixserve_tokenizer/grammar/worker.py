"""The process that compiles grammars: niced, bounded in memory, and gone when its parent is.

Started by service.py as `python -m radixserve_tokenizer.grammar.worker FD PARENT_PID`. What it compiles comes from
users, so it is expected to be slow, to run out of memory or to crash now and then; nothing else lives in it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING

from radixserve_tokenizer.grammar.compiler import CompileError, Compiler, OutOfMemoryError
from radixserve_tokenizer.grammar.messages import Compile, FrameReader, Result, Start, Started, decode_to_worker, frame
from radixserve_tokenizer.grammar.schema.compile import forget

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.messages import ToWorker

_NICENESS = 10
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve the socket of this file descriptor until it closes."""
    descriptor, parent = int(arguments[0]), int(arguments[1])
    _die_with(parent)
    # A terminal's Ctrl-C goes to every process: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _step_back()
    with socket.socket(fileno=descriptor) as connection:
        return _serve(connection)


def _step_back() -> None:
    """Leave the cores to who computes answers.

    Linux may share them out by session first (autogroups), and a process's niceness then counts within its session alone: the worker
    takes a session of its own, and makes that nice as well.
    """
    os.nice(_NICENESS)
    try:
        os.setsid()
        with open("/proc/self/autogroup", "w", encoding="ascii") as group:
            group.write(str(_NICENESS))
    except OSError:
        pass  # no Linux, or one without autogroups: the niceness above is all there is


def _die_with(parent: int) -> None:
    """SIGKILL when the parent's thread ends (Linux); the closed socket does the same more slowly elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the parent process is gone")


def _serve(connection: socket.socket) -> int:
    compiler: Compiler | None = None
    reader = FrameReader()
    exhausted = False
    tenant = ""
    while data := connection.recv(1 << 16):
        for body in reader.feed(data):
            message: ToWorker = decode_to_worker(body)
            match message:
                case Start():
                    compiler = Compiler(message.vocabulary, message.eos_token_ids)
                    _limit_memory(message.memory_mb)
                    connection.sendall(frame(Started()))
                case Compile():
                    assert compiler is not None, "a job before Start"
                    if message.tenant != tenant:
                        tenant = message.tenant
                        forget()
                    try:
                        payload = compiler.compile(message.kind, message.source)
                        result = Result(job=message.job, payload=payload)
                    except CompileError as error:
                        exhausted = isinstance(error, OutOfMemoryError)
                        result = Result(job=message.job, error=str(error), is_last=exhausted)
                    connection.sendall(frame(result))
                    if exhausted:
                        return 0  # the service starts another
    return 0


def _limit_memory(memory_mb: int) -> None:
    """At most this much more address space than now: the libraries alone map some GB of it."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
