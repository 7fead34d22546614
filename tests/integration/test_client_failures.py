"""Clients that are killed, connections that break, and a runtime that dies under a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import radixserve as rs
from benchmarks.load import settled_stats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from radixserve_lang.connection import Connection

SETTINGS: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 8192, "log_level": "warning"}
KEY = "the secret of a run that is taken up"


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[rs.Engine]:
    with rs.Engine(str(tiny_model), **SETTINGS) as running:
        yield running


@rs.function
def story(s: rs.State, parts: int, max_tokens: int = 60) -> list[str]:
    s += rs.user("Tell a story.")
    found: list[str] = []
    for i in range(parts):
        s += rs.user(f"Part {i}")
        with s.fork(2) as drafts:
            texts = [d.gen(max_tokens=max_tokens, ignore_eos=True) for d in drafts]
            found += [text.value for text in texts]
        s += rs.user("Chosen: ", texts[0])
        found.append(s.select([" good", " bad"]).value)
        found.append(s.gen(max_tokens=max_tokens, ignore_eos=True).value)
    return found


@dataclass
class Cut:
    """Breaks the connection, on the client's own thread."""

    connection: Connection

    def flush_due(self, now: float) -> None:
        """As the monitor does it."""
        self.connection._lose("cut by the test")


def cut(engine: rs.EngineLike) -> None:
    connection: Any = engine.client.transport
    connection.flush_at(time.monotonic(), Cut(connection))


def cutter(engine: rs.EngineLike, stop: threading.Event, counts: list[int]) -> None:
    while not stop.wait(0.25):
        cut(engine)
        counts.append(1)


def test_a_detached_run_survives_a_connection_that_breaks_again_and_again(engine: rs.Engine) -> None:
    expected = story.run(3, engine=engine, seed=11).value
    detached = story.using(detached_ttl_s=60.0)
    stop, counts = threading.Event(), list[int]()
    with rs.connect(engine.url) as remote:
        thread = threading.Thread(target=cutter, args=(remote, stop, counts))
        thread.start()
        try:
            for _ in range(3):
                assert detached.run(3, engine=remote, seed=11).value == expected
        finally:
            stop.set()
            thread.join()
    assert counts
    stats = settled_stats(engine.client)
    assert stats["num_running"] == stats["pages_locked"] == 0


def test_a_stream_survives_too(engine: rs.Engine) -> None:
    @rs.function
    def one(s: rs.State) -> str:
        s += rs.user("Stream.")
        return s.gen(max_tokens=600, ignore_eos=True).value

    expected = one.run(engine=engine, seed=3).value
    with rs.connect(engine.url) as remote:
        stream = one.using(detached_ttl_s=60.0).stream(engine=remote, seed=3)
        pieces: list[str] = []
        for piece in stream:
            pieces.append(piece)
            if len(pieces) in (2, 4):
                cut(remote)
        assert "".join(pieces) == stream.run.value == expected


def test_without_it_the_program_ends_with_a_clear_error(engine: rs.Engine) -> None:
    @rs.function
    def one(s: rs.State) -> str:
        s += rs.user("Go on.")
        value = s.gen(max_tokens=4000, ignore_eos=True)
        assert not value.done
        cut(remote)
        return value.value

    with rs.connect(engine.url) as remote:
        with pytest.raises(rs.ServerGoneError, match=r"cut by the test") as caught:
            one.run(engine=remote)
        assert "gen at" in str(caught.value)
        assert "test_client_failures.py" in str(caught.value)


_CHILD = """
import sys
import radixserve as rs

@rs.function
def story(s, parts, detached):
    s += rs.user("Tell a story.")
    found = []
    for i in range(parts):
        s += rs.user(f"Part {i}")
        s.lease(60.0)
        found.append(s.gen(max_tokens=100, ignore_eos=True).value)
        print("part", i, flush=True)
    return found

url, key, parts = sys.argv[1:4]
program = story.using(detached_ttl_s=30.0, resume_key=key) if key else story
with rs.connect(url) as engine:
    print("value", program.run(int(parts), bool(key), engine=engine, seed=5).value, flush=True)
"""


def child(engine: rs.Engine, parts: int, key: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _CHILD, engine.url, key, str(parts)], stdout=subprocess.PIPE, text=True)


def killed_after(engine: rs.Engine, line: str, parts: int, key: str = "") -> None:
    process = child(engine, parts, key)
    assert process.stdout is not None
    for said in process.stdout:
        if said.strip() == line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_nothing_of_a_killed_client_is_left(engine: rs.Engine) -> None:
    killed_after(engine, "part 1", 1000)
    deadline = time.monotonic() + 12.0
    while time.monotonic() < deadline:
        stats = engine.client.query("stats").result(10)
        left = [stats[name] for name in ("num_running", "num_waiting", "pages_locked", "num_leases", "num_programs")]
        if not any(left):
            return
        time.sleep(0.2)
    raise AssertionError(stats)


@pytest.mark.slow
def test_another_process_takes_a_killed_run_up(engine: rs.Engine) -> None:
    whole = child(engine, 6)
    expected = whole.communicate(timeout=60)[0].splitlines()[-1]
    killed_after(engine, "part 2", 6, KEY)
    before = engine.client.query("stats").result(10)["num_output_tokens"]
    again = child(engine, 6, KEY)
    assert again.communicate(timeout=60)[0].splitlines()[-1] == expected
    generated = engine.client.query("stats").result(10)["num_output_tokens"] - before
    assert generated <= 300  # what was finished was not generated again
    stats = settled_stats(engine.client)
    assert stats["num_running"] == stats["pages_locked"] == 0


def test_a_runtime_that_dies_under_programs(tiny_model: Path) -> None:
    with rs.Engine(str(tiny_model), **SETTINGS) as engine:
        expected = {seed: story.run(3, engine=engine, seed=seed).value for seed in (1, 2, 3)}

        def kill() -> None:
            for _ in range(2):
                time.sleep(0.4)
                os.kill(engine.supervisor.pids["runtime"], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        runs = story.run_batch([(3,)] * 3, engine=engine, seed=1, progress=False)
        killer.join()
        for seed, run in zip((1, 2, 3), runs, strict=True):
            if run.error is None:
                assert run.value == expected[seed]
            else:
                assert isinstance(run.error, rs.OpError), run.error
                assert run.error.code in ("runtime_restarted", "runtime_down", "skipped")
                assert "test_client_failures.py" in str(run.error)
        assert any(run.error is None for run in runs)


def test_a_tokenizer_process_that_dies_under_a_program(tiny_model: Path) -> None:
    """Detached or not: what it held is gone with it."""

    @rs.function
    def watched(s: rs.State) -> str:
        s += rs.user("Go on.")
        # The process has it once it has answered: an op that is still on its way would reach the new process, and be right.
        assert s.gen(max_tokens=1, ignore_eos=True).value is not None
        value = s.gen(max_tokens=4000, ignore_eos=True)
        assert not value.done
        os.kill(engine.supervisor.pids["tokenizer"], signal.SIGKILL)
        return value.value

    with rs.Engine(str(tiny_model), **SETTINGS) as engine:
        expected = story.run(1, engine=engine, seed=4).value
        for program in (watched, watched.using(detached_ttl_s=60.0)):
            with pytest.raises(rs.ServerGoneError, match=r"crashed or been stopped|was restarted") as caught:
                program.run(engine=engine)
            assert "waiting for gen at" in str(caught.value)
            assert "test_client_failures.py" in str(caught.value)
            assert story.run(1, engine=engine, seed=4).value == expected, "the next one waits for the new process"


_SLEEPER = """
import sys
import radixserve as rs

@rs.function
def story(s):
    s += rs.user("Tell a story.")
    print("asked", flush=True)
    return "".join([s.gen(max_tokens=100, ignore_eos=True).value for _ in range(20)])

url, ttl_s = sys.argv[1], float(sys.argv[2])
with rs.connect(url) as engine:
    try:
        print(len(story.using(detached_ttl_s=ttl_s).run(engine=engine, seed=5).value), flush=True)
    except rs.ServerGoneError as error:
        print(*str(error).splitlines(), flush=True)
"""


@pytest.mark.slow
def test_a_suspended_process_hears_what_it_has_lost(engine: rs.Engine) -> None:
    command = [sys.executable, "-c", _SLEEPER, engine.url]
    processes = [subprocess.Popen([*command, ttl_s], stdout=subprocess.PIPE, text=True) for ttl_s in ("0", "60")]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGSTOP)
    time.sleep(12.0)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    lost, kept = (process.communicate(timeout=20)[0] for process in processes)
    assert "silent for 10 s and its programs are gone" in lost
    assert "waiting for gen at <string>:9 in " in lost
    assert int(kept) > 0
