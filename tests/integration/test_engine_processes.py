"""Real processes on a tiny random model: programs, pressure, processes that die, and a clean end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

import radixserve as rs
from benchmarks.load import Call, settled_stats
from radixserve_tokenizer.protocol import Sampling
from tests.integration.conftest import free_port, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GREEDY = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "log_level": "warning"}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[rs.Engine]:
    with rs.Engine(str(tiny_model), **GREEDY) as running:
        yield running


@rs.function
def branches(s: rs.State, question: str, n: int = 6) -> list[str]:
    s += (rs.system("You are a test."), rs.user(question))
    with s.fork(n) as forked:
        return [var.value for var in [b.gen(max_tokens=12, temperature=1.0, ignore_eos=True) for b in forked]]


@rs.function
def answer(s: rs.State, question: str, max_tokens: int = 12) -> str:
    s += rs.user(question)
    return s.gen(max_tokens=max_tokens, temperature=0.0, ignore_eos=True).value


def test_a_program_repeats_for_its_seed_whatever_runs_beside_it(engine: rs.Engine) -> None:
    alone = branches.run("Hello?", engine=engine, seed=5).value
    assert len(set(alone)) == 6
    batch = branches.run_batch(["Hello?", "Who?", "Hello?"], engine=engine, seed=5, progress=False)
    assert batch[0].value == alone
    assert branches.run("Hello?", engine=engine, seed=6).value != alone


def test_branches_share_the_prompt(engine: rs.Engine) -> None:
    engine.client.query("reset_cache").result(10)
    run = branches.run("A question that nobody asked before?", engine=engine, seed=1)
    prompt = run.usage.prompt_tokens // 6
    assert run.usage.prompt_tokens - run.usage.cached_tokens <= prompt + 5 * 17


def test_a_var_is_filled_in_on_the_server(engine: rs.Engine) -> None:
    @rs.function
    def join(s: rs.State) -> tuple[str, str]:
        s += rs.user("one")
        with s.fork(2) as (a, b):
            first, second = (x.gen(max_tokens=6, temperature=1.0, ignore_eos=True) for x in (a, b))
            s += rs.user("merge ", first, " and ", second)
            return s.gen(max_tokens=4, temperature=0.0, ignore_eos=True).value, f"merge {first.value} and {second.value}"

    got, text = join.run(engine=engine, seed=2).value

    @rs.function
    def plain(s: rs.State) -> str:
        s += (rs.user("one"), rs.user(text))
        return s.gen(max_tokens=4, temperature=0.0, ignore_eos=True).value

    assert got == plain.run(engine=engine).value


def test_leaving_a_fork_cancels_and_frees(engine: rs.Engine) -> None:
    @rs.function
    def leave(s: rs.State) -> str:
        s += rs.user("go")
        with s.fork(4) as forked:
            vars_ = [b.gen(max_tokens=3000 if i else 2, ignore_eos=True) for i, b in enumerate(forked)]
            return vars_[0].value

    leave.run(engine=engine)
    stats = settled_stats(engine.client)
    assert stats["num_running"] == stats["num_waiting"] == stats["pages_locked"] == 0


def test_http_and_dsl_give_the_same_answer(tiny_model: Path, engine: rs.Engine) -> None:
    expected = answer.run("What?", engine=engine).value
    with serving(str(tiny_model), "--dtype", "float32", "--threads", "1", "--kv-tokens", "4096") as server:
        got = server.chat(messages=[{"role": "user", "content": "What?"}], max_tokens=12, temperature=0, ignore_eos=True)
        assert got["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(
    "settings",
    [{"prefix_cache": False}, {"page_size": 1}, {"max_batch_tokens": 16}, {"kv_tokens": 512, "max_context": 400}, {"schedule": "static", "max_running": 2}],
    ids=str,
)  # fmt: skip
def test_same_answers_with_other_settings(tiny_model: Path, engine: rs.Engine, settings: dict[str, Any]) -> None:
    questions = [f"Question {i} about something?" for i in range(8)]
    expected = [run.value for run in answer.run_batch(questions, engine=engine, progress=False)]
    with rs.Engine(str(tiny_model), **(GREEDY | settings)) as other:
        assert [run.value for run in answer.run_batch(questions, engine=other, progress=False)] == expected


def test_pressure_and_clients_that_leave(tiny_model: Path) -> None:
    with rs.Engine(str(tiny_model), **(GREEDY | {"kv_tokens": 384})) as engine:
        calls = [
            Call([("user", f"{i} " + "word " * 40)], Sampling(max_tokens=64, temperature=0.0, ignore_eos=True)) for i in range(30)
        ]
        for call in calls:
            call.start(engine.client)
        for call in calls[::5]:
            call.stop()
        assert all(call.ended.wait(60) for call in calls)
        assert all(call.done is not None and len(call.done.token_ids) == 64 for call in calls if call.error != "aborted")
        stats = settled_stats(engine.client)
        assert stats["pages_free"] + stats["pages_cached"] == stats["pages_total"]
        assert stats["pages_locked"] == 0


@pytest.mark.parametrize("name", ["runtime", "tokenizer"])
def test_a_process_that_is_killed(tiny_model: Path, name: str) -> None:
    with rs.Engine(str(tiny_model), **GREEDY) as engine:
        calls = [Call([("user", f"{i}")], Sampling(max_tokens=3800, temperature=0.0, ignore_eos=True)) for i in range(3)]
        for call in calls:
            call.start(engine.client)
        deadline = time.monotonic() + 10
        while not all(call.arrivals_s for call in calls) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(engine.supervisor.pids[name], signal.SIGKILL)
        for call in calls:
            assert call.ended.wait(10)
            assert call.error
            assert call.error.split(":")[0] in ("goodbye", "runtime_restarted")
        # Asked while nothing is there: a request waits for the new process, and is right.
        run = answer.run("Still there?", engine=engine)
        assert len(run.value) > 0


def test_what_showed_nothing_is_run_again_after_the_runtime_died(tiny_model: Path, engine: rs.Engine) -> None:
    expected = answer.run("Again?", 3000, engine=engine).value

    @rs.function
    def watched(s: rs.State) -> str:
        s += rs.user("Again?")
        var = s.gen(max_tokens=3000, temperature=0.0, ignore_eos=True)
        assert not var.done
        time.sleep(0.5)
        os.kill(other.supervisor.pids["runtime"], signal.SIGKILL)
        return var.value

    with rs.Engine(str(tiny_model), **GREEDY) as other:
        assert watched.run(engine=other).value == expected


def test_a_runtime_that_is_killed_again_and_again_is_started_again(tiny_model: Path) -> None:
    with rs.Engine(str(tiny_model), **GREEDY) as engine:
        for _ in range(4):
            before = engine.supervisor.pids["runtime"]
            os.kill(before, signal.SIGKILL)
            deadline = time.monotonic() + 15
            while engine.supervisor.pids["runtime"] == before and time.monotonic() < deadline:
                time.sleep(0.05)
        assert len(answer.run("Still there?", engine=engine).value) > 0
        assert not engine.supervisor.failed


def test_a_long_folder_for_temporary_files(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with rs.Engine(str(tiny_model), **GREEDY) as engine:
        assert len(answer.run("Where?", engine=engine).value) > 0


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def _gone(processes: list[psutil.Process], timeout_s: float = 10.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_sigterm_and_sigkill_leave_no_process_behind(tiny_model: Path) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with serving(str(tiny_model), "--threads", "1", "--kv-tokens", "1024") as server:
            family = _family(server.process.pid)
            assert len(family) >= 3
            server.process.send_signal(number)
            assert _gone(family)


def test_ctrl_c_drains(tiny_model: Path) -> None:
    with serving(str(tiny_model), "--threads", "1", "--kv-tokens", "8192") as server:
        body = {"model": "default", "prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(15) == 0
        with pytest.raises(httpx.TransportError):
            server.http.get("/health")


def test_models_that_can_not_be_served_end_at_once_with_a_clear_message(tmp_path: Path, tiny_model: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).write_bytes((tiny_model / name).read_bytes())
    command = [sys.executable, "-m", "radixserve.cli", "serve"]
    done = subprocess.run(
        [*command, str(other), "--port", str(free_port())], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "GPT2LMHeadModel is not supported" in done.stderr
    missing = subprocess.run([*command, str(tmp_path / "nothing.gguf")], capture_output=True, text=True, timeout=60, check=False)
    assert missing.returncode == 1
    assert "nothing.gguf" in missing.stderr


def test_flags_and_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "radixserve.cli"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert rs.__version__ in version.stdout
    file = tmp_path / "serve.toml"
    file.write_text("kv_tokens = -5\n")
    bad = subprocess.run([*command, "serve", "--config", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert bad.returncode == 2
    assert "kv_tokens must be at least 1" in bad.stderr
