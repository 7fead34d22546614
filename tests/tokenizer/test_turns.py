"""Short turns are asked for by thread, change nothing else, and aren't forced on the compiler."""

from __future__ import annotations

import os
import threading

import pytest

from radixserve_tokenizer.turns import take_short_turns, take_usual_turns, turn_ns


@pytest.fixture
def usual() -> int:
    """The usual turn; skips where the kernel knows no other."""
    before = turn_ns()
    take_short_turns()
    if not 0 < turn_ns() < before:
        pytest.skip("this kernel knows no shorter turns")
    take_usual_turns()
    assert turn_ns() == before
    return before


def test_all_threads_but_one_get_them(usual: int) -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    ids = [thread.native_id or 0 for thread in threads]
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        assert take_short_turns(except_for=ids[0]) >= 2
        assert [turn_ns(thread) < usual for thread in (*ids, threading.get_native_id())] == [False, True, True]
    finally:
        done.set()
        take_usual_turns()
    assert os.getpriority(os.PRIO_PROCESS, 0) == niceness
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert turn_ns() == usual


def test_a_thread_that_is_gone_is_no_error() -> None:
    assert turn_ns(2**22 + 1) == 0
