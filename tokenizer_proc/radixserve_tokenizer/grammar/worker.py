"""The processes that compile grammars: niced, bounded in memory, and gone when their parent is.

Started by process.py as `python -m radixserve_tokenizer.grammar.worker FD PARENT_PID`, with `Start` on standard input. That is the keeper: it
loads what the compiler needs, once, and then only forks. For every socket that it is handed it ends the child it has and forks another,
which compiles what comes through the socket. What is compiled comes from users, so a child is expected to be slow, to run out of memory
or to crash now and then; nothing else lives in it, and the next one is there in milliseconds.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from radixserve_tokenizer.grammar.compiler import CompileError, Compiler, OutOfMemoryError
from radixserve_tokenizer.grammar.messages import Compile, FrameReader, Result, Start, Started, decode_to_worker, frame
from radixserve_tokenizer.grammar.schema.compile import forget
from radixserve_tokenizer.turns import take_usual_turns

if TYPE_CHECKING:
    from radixserve_tokenizer.grammar.messages import ToWorker

_NICENESS = 6
"""Of its core about a quarter, where a computing thread wants it too: with more the steps beside it are disturbed, with less what takes
half a second to compile is not done in time."""
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve the control socket of this file descriptor until it closes."""
    descriptor, parent = int(arguments[0]), int(arguments[1])
    _die_with(parent)
    # A terminal's Ctrl-C goes to every process: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _step_back()
    (body,) = FrameReader().feed(sys.stdin.buffer.read())
    start = decode_to_worker(body)
    assert isinstance(start, Start), "the first message is Start"
    compiler = Compiler(start.vocabulary, start.eos_token_ids)
    gc.collect()
    gc.freeze()  # a child's collections would copy every page that they look at
    with socket.socket(fileno=descriptor) as control:
        _keep(control, compiler, start.memory_mb)
    return 0


def _step_back() -> None:
    """Leave the cores to who computes answers.

    Linux may share them out by session first (autogroups), and a process's niceness then counts within its session alone: the worker
    takes a session of its own, and makes that nice as well. It stays on one core: where each computing thread has its own, one that
    moves about stops now this thread and now that, and all the others wait each time.
    """
    os.nice(_NICENESS)
    take_usual_turns()
    with suppress(OSError, AttributeError):  # where the system has no such thing
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with suppress(OSError):  # no Linux, or one without autogroups: the niceness above is all there is
        os.setsid()
        with open("/proc/self/autogroup", "w", encoding="ascii") as group:
            group.write(str(_NICENESS))


def _die_with(parent: int) -> None:
    """SIGKILL when the parent's thread ends (Linux); the closed socket does the same more slowly elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the parent process is gone")


def _keep(control: socket.socket, compiler: Compiler, memory_mb: int) -> None:
    """One child at a time, for the last socket that came."""
    keeper, child = os.getpid(), 0
    try:
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            child = _end(child)
            if not descriptors:
                return
            child = os.fork()
            if not child:
                control.close()
                _be_child(descriptors[0], keeper, compiler, memory_mb)
            os.close(descriptors[0])
    finally:
        _end(child)


def _end(child: int) -> int:
    """Kill a child and wait until it is gone; 0, as there is none then."""
    if child:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return 0


def _be_child(descriptor: int, keeper: int, compiler: Compiler, memory_mb: int) -> NoReturn:
    """Compile until the socket closes, and end without what the keeper would do at its end."""
    status = 1
    try:
        _die_with(keeper)
        _be_first_to_go()
        _limit_memory(memory_mb)
        with socket.socket(fileno=descriptor) as connection:
            _serve(connection, compiler)
        status = 0
    finally:
        os._exit(status)


def _be_first_to_go() -> None:
    """Where the machine's memory ends, it is this process that the kernel ends, not the one it was forked from."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _serve(connection: socket.socket, compiler: Compiler) -> None:
    connection.sendall(frame(Started(pid=os.getpid())))
    reader = FrameReader()
    tenant = ""
    while data := connection.recv(1 << 16):
        for body in reader.feed(data):
            message: ToWorker = decode_to_worker(body)
            assert isinstance(message, Compile), "a child gets nothing but jobs"
            if message.tenant != tenant:
                tenant = message.tenant
                forget()
            result = _result(compiler, message)
            connection.sendall(frame(result))
            if result.is_last:
                return  # the service asks for another child


def _result(compiler: Compiler, job: Compile) -> Result:
    try:
        return Result(job=job.job, payload=compiler.compile(job.kind, job.source))
    except CompileError as error:
        return Result(job=job.job, error=str(error), is_last=isinstance(error, OutOfMemoryError))


def _limit_memory(memory_mb: int) -> None:
    """At most this much more address space than now: the libraries alone map some GB of it."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
