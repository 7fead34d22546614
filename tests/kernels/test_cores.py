"""Each computing thread on a core of its own. In processes of their own, as a core once held is held."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading
import torch
from radixserve_kernels.cpu.cores import hold_cores

cores, threads = sorted(os.sched_getaffinity(0)), int(sys.argv[1])
torch.set_num_threads(threads)
a = torch.ones(512, 512) @ torch.ones(512, 512)
ready, over = threading.Event(), threading.Event()
other = threading.Thread(target=lambda: (ready.set(), over.wait()))
other.start()
ready.wait()
held = hold_cores(threads)
if threads == len(cores) > 1:
    assert held == cores, held
    assert os.sched_getaffinity(0) == {cores[0]}
    alone = [mask for mask in map(os.sched_getaffinity, map(int, os.listdir("/proc/self/task"))) if len(mask) == 1]
    assert sorted(core for mask in alone for core in mask) == cores, "one thread each, and no other thread"
else:
    assert held == []
    assert os.sched_getaffinity(0) == set(cores)
assert os.sched_getaffinity(other.native_id) == set(cores)
assert torch.equal(torch.ones(512, 512) @ torch.ones(512, 512), a)
over.set()
"""


@pytest.mark.parametrize("threads", [1, len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0)) + 1])
def test_as_many_threads_as_cores_have_one_each_and_others_are_left_alone(threads):
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(threads)], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
